"""The training whose end is compared to the bit is that of the learner's own tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from notebook_learner.store.background import Background

sys.path.append(str(Path(__file__).parents[1] / "learner"))


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """In memory where there is such a place, for tests that need no real disk: a process that is killed
    leaves the same on both, and 10,000 fsyncs cost nothing here."""
    memory = Path("/dev/shm")
    found = Path(mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    yield found
    for each in gc.get_objects():  # a learner that was let go may still write
        if type(each) is Background:  # some things of torch warn where they are asked what they are
            each.wait()
    shutil.rmtree(found)

"""Tests of several devices start processes, by packages of the extra `devices`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "learner"))  # whole_catalogue: what the ranks measure


@pytest.fixture(autouse=True)
def engines_are_there() -> None:
    """At a desk without them the tests say that they were left out, and why; in CI they fail."""
    there = all(importlib.util.find_spec(name) for name in ("ipyparallel", "cloudpickle"))
    if not there and not os.environ.get("CI"):
        pytest.skip("starts ipyparallel engines: pip install 'notebook_learner[devices]'")
    assert there

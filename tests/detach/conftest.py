"""Detached runs are processes, and what goes over is sent by a package of the extra `devices`."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "learner"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
sys.path.insert(0, str(Path(__file__).parents[1] / "widget"))

from detach_support import end

from notebook_learner import Learner

T = TypeVar("T", bound=Learner)


@pytest.fixture(autouse=True)
def cloudpickle_is_there() -> None:
    there = importlib.util.find_spec("cloudpickle") is not None
    if not there and not os.environ.get("CI"):
        pytest.skip("sends a learner to another process: pip install 'notebook_learner[devices]'")
    assert there


@pytest.fixture
def owned() -> Iterator[Callable[[T], T]]:
    """Whatever a test does, no process of its learners is left."""
    mine: list[Learner] = []

    def own(learner: T) -> T:
        mine.append(learner)
        return learner

    yield own
    for learner in mine:
        end(learner)

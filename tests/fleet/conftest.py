"""Tests of several devices start processes, by packages of the extra `devices`."""

from __future__ import annotations

import importlib.util
import os

import pytest


@pytest.fixture(autouse=True)
def engines_are_there() -> None:
    """At a desk without them the tests say that they were left out, and why; in CI they fail."""
    there = all(importlib.util.find_spec(name) for name in ("ipyparallel", "cloudpickle"))
    if not there and not os.environ.get("CI"):
        pytest.skip("starts ipyparallel engines: pip install 'notebook_learner[devices]'")
    assert there

"""These tests need a GPU, or the stand-in for one, which is loaded into the process of a run of this folder
alone.

In a run of more, other tests share the process and must see no GPU: there, tests/test_without_a_gpu.py runs
this folder in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stand_in
import torch

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Put the stand-in in CUDA's place before any test is imported."""
    if not torch.cuda.is_available() and _all_in_here(config) and not stand_in.why_not():
        stand_in.load()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without a GPU these tests do not exist, except where why they cannot run is all there is to say."""
    if not collection_path.is_relative_to(HERE) or collection_path == HERE or torch.cuda.is_available():
        return None
    return None if _all_in_here(config) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why they cannot run."""
    if torch.cuda.is_available():
        return
    reason = stand_in.why_not() or "the stand-in for CUDA is for runs of tests/gpu alone"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


def _all_in_here(config: pytest.Config) -> bool:
    given = [Path(config.invocation_params.dir, each.partition("::")[0]) for each in config.args]
    return all(HERE in (path.resolve(), *path.resolve().parents) for path in given)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """The stand-in notes what CUDA would not: memory used by two streams without an event between them."""
    yield
    assert not stand_in.loaded() or stand_in.faults() == []


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

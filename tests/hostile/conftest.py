"""Runs to damage, and the process that opens them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile_run import RECORDERS, Samples, run_in
from hostile_watched import WATCHED


@pytest.fixture(scope="package")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    root = tmp_path_factory.mktemp("samples")
    return {name: run_in(root / name, make()) for name, make in RECORDERS.items()}


@pytest.fixture(scope="package", autouse=True)
def watched() -> Iterator[None]:
    yield
    WATCHED.end()

"""A place for runs in which no other test's run lies: a panel offers the runs beside its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    alone = tmp_path / tmp_path.name
    alone.mkdir()
    return alone

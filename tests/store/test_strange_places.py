"""Whatever lies in a stranger's run in the place of a file or a folder: going on with the run changes nothing
outside its directory, hangs nowhere, and either works or is refused by an error of ours."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from strange_places import FOLDERS, KINDS, PLACES, SCENARIOS, Outside, bounded, put, write_run

RESUMES = [name for name in SCENARIOS if name.startswith("resume")]
OTHERS = [name for name in SCENARIOS if name not in RESUMES]
FOLLOWED = ("link to a file", "link to a folder")
"""Each of these is tried with one of those that go on, and one of the others; the rest with one of the six in
turn. All six for each take five times as long: `python tests/store/strange_places.py` tries them."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where there is such a place: hundreds of runs are written here."""
    memory = Path("/dev/shm")
    made = Path(mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    write_run(folder / "run")
    return folder / "run"


EVERY_SECOND = [
    pytest.param(place, kind, marks=pytest.mark.soak if (x + y) % 2 else ())
    for x, place in enumerate(PLACES)
    for y, kind in enumerate(KINDS)
]
"""Each kind and each place is there by default; all pairs of them are in the soak."""


@pytest.mark.parametrize(("place", "kind"), EVERY_SECOND)
def test_nothing_outside_changes(place: str, kind: str, run: Path, folder: Path) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("only root makes a device")
    if (place in FOLDERS and kind == "folder") or (place not in FOLDERS and kind == "file"):
        pytest.skip("that is what lies there")
    number = PLACES.index(place) + list(KINDS).index(kind)
    mine = [list(SCENARIOS)[number % len(SCENARIOS)]]
    if kind in FOLLOWED:
        mine = [RESUMES[number % len(RESUMES)], OTHERS[number % len(OTHERS)]]
    for scenario in mine:
        here = Path(mkdtemp(dir=folder))  # a name of its own: a learner may write a little after its end
        outside, copy = Outside(here / "outside", run, place), here / "run"
        shutil.copytree(run, copy)
        put(kind, copy, place, outside)
        before = outside.listing()
        with bounded():
            SCENARIOS[scenario](copy)
        assert outside.listing() == before, scenario
        shutil.rmtree(here, ignore_errors=True)  # a writer thread may be at its last file

"""Programs that a machine may lack. The tests that use one are left out there, and say what to install.

A test uses a program by a fixture, or says so with a mark of its own:

    @pytest.mark.needs_program("h5dump")

Where NOTEBOOK_LEARNER_PROGRAMS is "required", a missing program fails its tests instead: CI installs them all
and then runs these tests once more.
"""

from __future__ import annotations

import os
import shutil

import pytest

PACKAGES = {
    "g++": "g++",
    "h5dump": "hdf5-tools",
    "ip": "iproute2",
}
"""Which package of Debian brings it."""

OF_FIXTURES = {
    "hdf5_tool": ["h5dump"],
    "apart": ["ip"],
}
"""What a test needs that asks for this fixture."""


def mark_programs(item: pytest.Item) -> None:
    """Mark a test with the programs of its fixtures."""
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in OF_FIXTURES:
            item.add_marker(pytest.mark.needs_program(*OF_FIXTURES[fixture]))


def find_program(name: str) -> str | None:
    """Look on the PATH, and in each sbin next to a bin on it: only root's PATH names the daemons' folders."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    sbin = [f"{folder[:-3]}sbin" for folder in path if os.path.basename(folder) == "bin"]
    return shutil.which(name, path=os.pathsep.join([*path, *sbin]))


def require_programs(*names: str) -> None:
    """Leave the test out, or fail it, where one of these is missing."""
    missing = sorted({PACKAGES[name] for name in names if find_program(name) is None})
    if not missing:
        return
    told = f"needs {', '.join(names)}: sudo apt install {' '.join(missing)}"
    if os.environ.get("NOTEBOOK_LEARNER_PROGRAMS") == "required":
        pytest.fail(told)
    pytest.skip(told)

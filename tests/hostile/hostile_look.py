"""Reads runs with everything that reads runs, and tells what that did.

A directory a line in, JSON a line out.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hostile_run import RECORDERS, files_of, put, run_in
from hostile_worker import Exercise, Largest, Watch, memory, run_info

from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.errors import DamagedError

LONGEST = 30
"""Seconds that all of a run's files may take."""


def main() -> None:
    run_info.git_commit = lambda *_: None
    watch, largest = Watch(Path("/nowhere")), Largest()
    with TemporaryDirectory() as warm:  # whatever is loaded when it is first needed
        for kind, make in RECORDERS.items():
            run = Path(warm, kind)
            run_in(run, make())
            Exercise(run, watch, largest).read(files_of(run))
            put(run, {})
    forbid("h5py")
    for line in sys.stdin:
        print(json.dumps(look(Path(line.rstrip("\n")), watch, largest)), flush=True)
    os._exit(0)


def forbid(package: str) -> None:
    """An import of it fails from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        sys.modules[name] = None  # type: ignore[assignment]


def look(directory: Path, watch: Watch, largest: Largest) -> dict[str, Any]:
    home = directory / "checkpoint"
    names = [] if home.is_symlink() else [f"checkpoint/{path.name}" for path in sorted(home.glob("*"))]
    exercise = Exercise(directory, watch, largest)
    watch.home = os.path.realpath(directory)
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    largest.nbytes = 0
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    with watch.watching():
        exercise.read(dict.fromkeys(names, b""))
    seen = sorted(set(watch.seen))
    try:
        folder = CheckpointFolder(home)
        damaged = sum(bool(folder.verify(info)) for info in folder.list())
    except DamagedError:
        damaged = 1
    faulthandler.cancel_dump_traceback_later()
    files = [os.path.join(here, name) for here, _, found in os.walk(directory) for name in found]
    return {
        "seen": seen,
        "errors": [f"{found['verb']}: {found['what']} {found['trace'][-600:]}" for found in exercise.found],
        "grown": memory("VmHWM") - before,
        "tensor": largest.nbytes,
        "size": sum(os.lstat(path).st_size for path in files),
        "damaged": damaged,
    }


if __name__ == "__main__":
    main()

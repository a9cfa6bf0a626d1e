"""Trains into a disk that is in real trouble, and on once the trouble is over; prints what was said, then
what is wrong, as JSON.

    python real_disk.py <trouble> <folder>
"""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from crash_support import (
    BEFORE_SAVE,
    Training,
    background_of,
    wrong_at_the_end,
    wrong_with_checkpoints,
)

from notebook_learner.errors import CheckpointError, LoggerError

TRAINING = Training(epochs=3)


def fill(folder: Path) -> Callable[[], None]:
    """Another program's file takes all the space that there is."""
    filler = folder / "filler"
    for size in (1 << 16, 1 << 10, 1):
        try:
            with filler.open("ab", buffering=0) as file:
                while file.write(bytes(size)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return filler.unlink


def limit(folder: Path) -> Callable[[], None]:
    """No file may grow beyond some bytes, fewer than a model has."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def forbid(folder: Path) -> Callable[[], None]:
    """The directory belongs to another user, and only that user may write."""
    me = os.geteuid()
    folders = [path for path in (folder, *folder.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    if me == 0:  # whom no mode binds
        os.seteuid(65534)

    def end() -> None:
        os.seteuid(me)
        for path in folders:
            path.chmod(0o755)

    return end


def lock(folder: Path) -> Callable[[], None]:
    """The file system turns read-only, as one does whose disk fails: the mount through which the learner
    reaches it. The system refuses that while a file is open for writing, so it happens between two passes."""

    def turn(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,bind,{how}", str(folder)], check=True)

    turn("ro")
    return lambda: turn("rw")


TROUBLES = {"full": fill, "limited": limit, "forbidden": forbid, "read-only": lock}


def main() -> None:
    trouble, folder = TROUBLES[sys.argv[1]], Path(sys.argv[2])
    said, wrong = [], []
    # First, and elsewhere: this imports all that is imported late, which may not be read in trouble.
    straight = TRAINING.straight(Path(sys.argv[3]))
    directory = folder / "digits"
    if trouble is lock:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        os.chdir("/")
    learner = TRAINING.learner(directory)
    if trouble is lock:
        learner.step_epoch()
    else:
        learner.step(BEFORE_SAVE)
    label = learner.save()
    background_of(learner).wait()

    end = trouble(folder)
    for _ in range(2):
        try:
            learner.fit()
            wrong.append("nothing was said")
        except (CheckpointError, LoggerError) as error:
            said.append(str(error))
    background_of(learner).wait()
    end()
    wrong += wrong_with_checkpoints(directory, [label])
    for path in directory.rglob(".*.tmp"):
        if sys.argv[1] != "forbidden":
            wrong.append(f"left over: {path}")

    learner.fit()
    wrong += wrong_at_the_end(learner, directory, straight)
    print(json.dumps([said, wrong]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

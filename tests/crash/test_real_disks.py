"""Disks in real trouble: full, limited, read-only, or gone. The error says what and where, what was
saved is whole, and once the trouble is over the run goes on to the straight end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from crash_support import (
    BEFORE_SAVE,
    End,
    Training,
    background_of,
    wrong_at_the_end,
    wrong_with_checkpoints,
)
from exactness import differences, everything

from notebook_learner.errors import CheckpointError, LoggerError

HERE = Path(__file__).parent
TRAINING = Training(epochs=2)


def trained(trouble: str, folder: Path, prefix: str = "exec") -> tuple[list[str], list[str]]:
    """What `real_disk.py` says, and what is wrong; the prefix prepares the disk at `$0`."""
    disk, straight = folder / "disk", folder / "straight"
    disk.mkdir()
    folder.chmod(0o755)
    paths = [str(HERE), str(HERE.parent / "learner"), *(p for p in sys.path if p)]
    script = shlex.join([sys.executable, str(HERE / "real_disk.py"), trouble, str(disk), str(straight)])
    ran = subprocess.run(
        ["sh", "-c", f"{prefix} {script}", str(disk)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert ran.returncode == 0, ran.stderr
    said, wrong = json.loads(ran.stdout)
    return said, wrong


SMALL = 'exec unshare -rm sh -c \'mount -t tmpfs -o size=2M small "$0" && exec "$@"\' "$0"'
"""A small tmpfs of its own, in a namespace, so that it takes no rights."""


def can_mount(folder: Path) -> bool:
    """Whether the system lets this process have one."""
    probe = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=2M small "$0"', str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


def test_a_full_disk(quick_folder: Path) -> None:
    """If the system does not allow a mount, a limit on the size of files stands for it."""
    possible = can_mount(quick_folder)
    said, wrong = trained("full", quick_folder, SMALL) if possible else trained("limited", quick_folder)
    assert wrong == []
    assert len(said) == 2
    reason = "No space left on device" if possible else "File too large"
    assert all(reason in text and "fit() again" in text for text in said)


@pytest.mark.soak
def test_a_limit_on_the_size_of_files(quick_folder: Path) -> None:
    said, wrong = trained("limited", quick_folder)
    assert wrong == []
    assert len(said) == 2
    assert all("File too large" in text and "fit() again" in text for text in said)


@pytest.mark.soak
def test_a_directory_that_may_not_be_written_to(quick_folder: Path) -> None:
    said, wrong = trained("forbidden", quick_folder)
    assert wrong == []
    assert len(said) == 2
    assert all("Permission denied" in text and "fit() again" in text for text in said)


@pytest.mark.soak
def test_a_file_system_that_turns_read_only(quick_folder: Path) -> None:
    """If the system does not allow a mount, a directory without rights stands for it."""
    possible = can_mount(quick_folder)
    said, wrong = (
        trained("read-only", quick_folder, SMALL) if possible else trained("forbidden", quick_folder)
    )
    assert wrong == []
    assert len(said) == 2
    reason = "Read-only file system" if possible else "Permission denied"
    assert all(reason in text and "fit() again" in text for text in said)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> End:
    return TRAINING.straight(tmp_path_factory.mktemp("straight"))


def test_a_run_whose_directory_is_removed_says_so_and_goes_on_without_it(
    tmp_path: Path, straight: End
) -> None:
    directory = tmp_path / "digits"
    learner = TRAINING.learner(directory)
    learner.step(BEFORE_SAVE)
    learner.save()
    background_of(learner).wait()
    shutil.rmtree(directory)

    said = []
    for _ in range(4):  # a logger, a checkpoint: each says it once
        try:
            learner.fit()
            break
        except (CheckpointError, LoggerError) as error:
            said.append(str(error))

    assert said
    assert all("removed" in text and "digits" in text for text in said)
    background_of(learner).wait()
    assert list(differences(everything(learner), straight[0])) == []
    assert wrong_with_checkpoints(directory, [str(TRAINING.epochs)]) == []


def test_checkpoints_that_are_moved_away_and_put_back(tmp_path: Path, straight: End) -> None:
    directory = tmp_path / "digits"
    learner = TRAINING.learner(directory)
    learner.step(BEFORE_SAVE)
    label = learner.save()
    (directory / "checkpoint").rename(tmp_path / "away")

    with pytest.raises(CheckpointError, match=r"moved or removed.*put it back"):
        learner.fit()
    assert not (directory / "checkpoint").exists()
    (tmp_path / "away").rename(directory / "checkpoint")
    learner.fit()

    assert wrong_at_the_end(learner, directory, straight) == []
    assert wrong_with_checkpoints(directory, [label]) == []

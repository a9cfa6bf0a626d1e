"""An error at any call to the file system: the user sees it, nothing that was saved is touched, and
once the cause has gone `fit()` goes on to the straight end."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from crash_support import (
    BEFORE_SAVE,
    Calls,
    End,
    Ledger,
    Notices,
    Training,
    background_of,
    done,
    train_and_save,
    unlike,
    wrong_at_the_end,
    wrong_with_checkpoints,
)

from notebook_learner import Learner
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.errors import CheckpointError, LoggerError, StoreError

TRAINING = Training(epochs=2, batches=3)
NEEDS_SPACE = ("create", "allocate", "write_at", "append", "sync", "make_directory", "open_to_append")


class Fault:
    """A hand that fails a call, or all that need space from that call on, until it is repaired."""

    def __init__(self, number: int, code: int, *, lasting: bool = False) -> None:
        self.number, self.code, self.lasting = number, code, lasting
        self.repaired = False
        self.failed: list[str] = []
        self._rests = False

    def __call__(self, number: int, name: str, real: Any, given: Any, named: Any) -> Any:
        now = number >= self.number and name in NEEDS_SPACE if self.lasting else number == self.number
        if now and not self.repaired and not self._rests:
            self.failed.append(name)
            where = given[0] if given and isinstance(given[0], Path) else None
            raise OSError(self.code, os.strerror(self.code), where and str(where))
        return real(*given, **named)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """While a test looks at what is there."""
        self._rests = True
        yield
        self._rests = False


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> End:
    return TRAINING.straight(tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The calls of a run in which all goes well."""
    with Calls(done) as calls:
        learner = TRAINING.learner(tmp_path_factory.mktemp("counted"))
        train_and_save(learner)
        background_of(learner).wait()
    return calls.names


VERBS: list[Callable[[Learner], Any]] = [
    lambda learner: learner.run_until(lambda learner: learner.position.iteration >= BEFORE_SAVE),
    lambda learner: learner.save(),
    lambda learner: learner.save(),
    lambda learner: learner.fit(),
]
"""What a person does, each until it works."""


def train_through(fault: Fault, directory: Path, straight: End) -> list[str]:
    """Train into a fault, repair it, train on; what is wrong then."""
    notices, wrong, told = Notices(), [], 0
    with Ledger() as ledger, Calls(fault):
        learner = TRAINING.learner(directory, renderer=notices)
        for verb in VERBS:
            while told < 9:
                try:
                    verb(learner)
                    break
                except (CheckpointError, LoggerError, StoreError) as error:
                    told += 1
                    if not isinstance(error.__cause__, OSError):
                        wrong.append(f"no cause: {error!r}")
                with fault.resting():
                    background_of(learner).wait()
                    wrong += wrong_with_checkpoints(directory, ledger.standing)
                fault.repaired = told > 1  # once it is tried again in vain
        if fault.lasting and fault.failed and not (told or notices.texts):
            wrong.append(f"nobody was told that {fault.failed} failed")
        background_of(learner).wait()
    if told == 9:
        return [*wrong, "it never ended"]
    if any(
        "could not be deleted" in text for text in notices.texts
    ):  # if it was the last, the next owner does
        CheckpointFolder(directory / "checkpoint").repair()
    return wrong + wrong_at_the_end(learner, directory, straight)


def problems(
    faults: list[Fault], folder: Path, straight: End
) -> tuple[list[tuple[int, str, list[str], list[str]]], int]:
    found, hit = [], 0
    for fault in faults:
        directory = folder / "runs"
        wrong = train_through(fault, directory, straight)
        hit += bool(fault.failed)
        if wrong:
            found.append((fault.number, errno.errorcode[fault.code], fault.failed[:3], wrong[:5]))
        shutil.rmtree(directory)
    return found, hit


CODES = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.EROFS)
PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("shift", range(len(CODES)))
@pytest.mark.rounds(1)
def test_an_error_at_any_single_call(
    shift: int, part: int, names: list[str], quick_folder: Path, straight: End
) -> None:
    """All its cases together: each call fails with each error."""
    numbers = range(part, len(names), PARTS)
    faults = [Fault(number, CODES[(number // PARTS + shift) % len(CODES)]) for number in numbers]
    found, hit = problems(faults, quick_folder, straight)
    assert found == []
    assert hit > 0.8 * len(faults)


@pytest.mark.parametrize("first", range(0, 28, 7))
@pytest.mark.rounds(1)
def test_a_disk_that_is_full_from_any_moment_on_until_somebody_makes_space(
    first: int, names: list[str], quick_folder: Path, straight: End
) -> None:
    faults = [Fault(number, errno.ENOSPC, lasting=True) for number in range(first, len(names), 28)]
    found, hit = problems(faults, quick_folder, straight)
    assert found == []
    assert hit > 0.8 * len(faults)


def test_an_old_checkpoint_that_was_damaged_does_not_stop_the_training(tmp_path: Path, straight: End) -> None:
    notices = Notices()
    learner = TRAINING.learner(tmp_path, renderer=notices)
    learner.run_until((1, "train", 3))
    background_of(learner).wait()
    (old,) = (tmp_path / "checkpoint").glob("state-1-2.*")
    old.write_bytes(old.read_bytes()[:100])

    learner.fit()

    assert unlike(learner, tmp_path, straight) == []
    assert [text for text in notices.texts if "1-2" in text and "not deleted" in text]


def test_a_deletion_that_failed_half_way_is_finished_with_the_next_save(
    quick_folder: Path, straight: End
) -> None:
    notices, directory, failed = Notices(), quick_folder / "runs", []

    def hand(number: int, name: str, real: Any, given: Any, named: Any) -> Any:
        if name == "unlink" and given[0].name.startswith("optim-1") and not failed:
            failed.append(given[0])
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(given[0]))
        return real(*given, **named)

    with Calls(hand):
        learner = TRAINING.learner(directory, renderer=notices)
        learner.fit()

    assert failed
    assert [text for text in notices.texts if "could not be deleted" in text]
    assert wrong_at_the_end(learner, directory, straight) == []


class FaultAt:
    """A hand that fails the nth call which concerns a kind of file, once."""

    def __init__(self, which: Callable[[Path], bool], nth: int) -> None:
        self.which, self.nth = which, nth
        self.met = 0
        self.failed = False
        self._open: set[int] = set()

    def __call__(self, number: int, name: str, real: Any, given: Any, named: Any) -> Any:
        mine = given[0] in self._open if isinstance(given[0], int) else self.which(given[0])
        self.met += mine
        if mine and self.met == self.nth and not self.failed and name != "close":
            self.failed = True
            named_after = str(given[0]) if isinstance(given[0], Path) else None
            raise OSError(errno.EIO, os.strerror(errno.EIO), named_after)
        result = real(*given, **named)
        if name == "open_to_read" and mine:
            self._open.add(result)
        elif name == "close":
            self._open.discard(given[0])
        return result


def resume_through(
    which: Callable[[Path], bool], folder: Path, straight: End
) -> Iterator[tuple[int, Exception | None, list[str]]]:
    """Go on from a checkpoint while one call for such a file fails, for each of them in turn: what was
    raised, and what was wrong at the end."""
    first = TRAINING.learner(folder / "first")
    first.step(BEFORE_SAVE)
    first.save()
    background_of(first).wait()
    for nth in range(1, 1000):
        directory, fault, raised = folder / str(nth), FaultAt(which, nth), None
        # copytree ends with an error where it meets a socket; the first learner still lives, and has one
        shutil.copytree(folder / "first", directory)
        with Calls(fault):
            try:
                learner = TRAINING.learner(directory, "latest")
            except Exception as error:
                raised = error
        if fault.met < nth:
            return
        if fault.failed:
            learner = TRAINING.learner(directory, "latest") if raised else learner
            with suppress(LoggerError):  # the log was to be cut just there
                learner.fit()
            learner.fit()
            yield nth, raised, wrong_at_the_end(learner, directory, straight)


def test_a_checkpoint_that_cannot_be_read_is_said_and_can_be_read_later(
    quick_folder: Path, straight: End
) -> None:
    ended = list(resume_through(lambda path: "checkpoint" in path.parts, quick_folder, straight))
    assert len(ended) > 20
    assert [each for each in ended if each[2]] == []
    silent = [nth for nth, raised, _ in ended if raised is None]
    assert len(silent) < len(ended) / 4  # some are asked only for what may be missing
    said = ("damaged", str(quick_folder))
    assert [
        raised for _, raised, _ in ended if raised and not any(text in str(raised) for text in said)
    ] == []


def test_a_log_that_cannot_be_read_is_not_taken_for_one_that_was_lost(
    quick_folder: Path, straight: End
) -> None:
    ended = list(resume_through(lambda path: path.suffix == ".log", quick_folder, straight))
    assert len(ended) > 3
    assert [each for each in ended if each[2]] == []

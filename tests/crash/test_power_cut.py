"""The power fails at any call, and what was not synced is gone, or there, or there in part: every
checkpoint that was announced is whole, with its logs, and the run goes on from it to the straight end."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_support import (
    BEFORE_SAVE,
    Calls,
    End,
    Ledger,
    Training,
    background_of,
    standing,
    train_and_save,
    unlike,
    wrong_with_checkpoints,
)
from disk_model import (
    Disk,
    Keep,
    Recording,
    Tree,
    all_of,
    each_alone_or_missing,
    nothing,
    some,
    tree_of,
    write_tree,
)

from notebook_learner import Learner
from notebook_learner.store import durable

TRAINING = Training(epochs=2, batches=4)
WHERE = Path("not") / "there" / "yet"


def rewind_and_save(learner: Learner) -> None:
    """Back over steps that a checkpoint holds: its logs are cut."""
    learner.step(BEFORE_SAVE)
    learner.save()
    learner.rewind(2)
    learner.fit()


@dataclass
class Recorded:
    """A run, call by call, with what was told between them."""

    root: Path
    recording: Recording
    straight: End

    def cuts(self) -> Iterator[tuple[int, Disk, list[str]]]:
        """After each call: the disk, and the checkpoints that a person counts on."""
        disk, told = Disk(self.root), []
        for number, (name, given) in enumerate(self.recording.calls):
            if name in ("saved", "let go"):
                told.append((name, given[0]))
            else:
                disk.play(name, given)
            yield number, disk, standing(told)


def recorded(folder: Path, train: Callable[[Learner], None]) -> Recorded:
    root, recording = folder / "disk", Recording()
    root.mkdir()
    with Ledger(recording.note), Calls(recording):
        learner = TRAINING.learner(root / WHERE)
        train(learner)
        background_of(learner).wait()
    return Recorded(root, recording, TRAINING.straight(folder / "straight"))


PROGRAMS = [train_and_save, rewind_and_save]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.__name__)
def run(request: pytest.FixtureRequest, quick_folder: Path) -> Recorded:
    return recorded(quick_folder, request.param)


@pytest.fixture
def after(quick_folder: Path) -> Path:
    return quick_folder / "after"


def test_the_model_of_the_disk_ends_with_what_is_on_the_disk(run: Recorded) -> None:
    *_, (_, disk, _) = run.cuts()
    assert disk.after(all_of) == tree_of(run.root)


def test_an_announced_checkpoint_outlives_a_power_cut_at_any_call(run: Recorded, after: Path) -> None:
    chance, wrong, seen = random.Random(1), [], set()
    for number, disk, needed in run.cuts():
        for keep in (nothing, all_of, some(chance), *each_alone_or_missing(disk.most_waiting)):
            tree = disk.after(keep)
            if is_new(seen, tree, *needed):
                with written(tree, after):
                    found = wrong_with_checkpoints(after / WHERE, needed)
                wrong += [(number, run.recording.calls[number], each) for each in found]
    assert wrong == []
    assert len(seen) > 250


def test_after_a_power_cut_the_run_goes_on_to_the_straight_end(run: Recorded, after: Path) -> None:
    """At each announcement, when all of it must be on the disk, and at calls between."""
    chance, wrong, seen = random.Random(2), [], set()
    for number, disk, _ in run.cuts():
        announced = run.recording.calls[number][0] == "saved"
        if not announced and chance.random() > 0.05:
            continue
        for keep in (nothing, some(chance)) if announced else (some(chance),):
            tree = disk.after(keep)
            if is_new(seen, tree):
                with written(tree, after):
                    learner = TRAINING.resumed(after / WHERE)
                    learner.fit()
                    found = unlike(learner, after / WHERE, run.straight)
                    background_of(learner).wait()
                wrong += [(number, run.recording.calls[number], each) for each in found]
    assert wrong == []
    assert len(seen) >= 15


def test_the_files_of_an_announced_checkpoint_have_their_names_on_the_disk(run: Recorded) -> None:
    """Readers of other makers know no temporary names, and nothing of what a restart mends."""
    for number, disk, _ in run.cuts():
        verb, given = run.recording.calls[number]
        if verb == "saved":
            where, _, label = given[0].rpartition("/")
            folder = WHERE / (where or "checkpoint")
            names = {path.name for path in disk.after(nothing) if path.parent == folder}
            assert {f"{part}-{label}.h5" for part in ("model", "optim", "scheduler", "state")} <= names


@pytest.mark.parametrize("keep", [nothing, all_of])
def test_a_file_that_was_replaced_is_the_new_one(keep: Keep, tmp_path: Path) -> None:
    root, recording = tmp_path / "disk", Recording()
    root.mkdir()
    with Calls(recording):
        for data in (b"old", b"new"):
            durable.replace(root / "file", [data], len(data))
    disk = Disk(root)
    for name, given in recording.calls:
        disk.play(name, given)
    assert disk.after(keep) == {Path(): None, Path("file"): b"new"}


@pytest.mark.parametrize("forgotten", ["sync_directory", "sync"])
def test_the_model_finds_out_what_is_not_synced(forgotten: str, quick_folder: Path, after: Path) -> None:
    """The negative control: a store that forgot to sync its files, or the folder of the checkpoints."""
    run = recorded(quick_folder, train_and_save)
    folder = run.root / WHERE / "checkpoint"
    run.recording.calls = [
        (name, given)
        for name, given in run.recording.calls
        if name != forgotten or (name == "sync_directory" and given[0] != folder)
    ]
    lost = 0
    for number, disk, needed in run.cuts():
        if run.recording.calls[number][0] == "saved":
            with written(disk.after(nothing), after):
                lost += bool(wrong_with_checkpoints(after / WHERE, needed))
    assert lost > 5


def is_new(seen: set[int], tree: Tree, *more: str) -> bool:
    """Whether nothing like it was looked at before."""
    key = hash((frozenset(tree.items()), more))
    known = key in seen
    seen.add(key)
    return not known


@contextmanager
def written(tree: Tree, folder: Path) -> Iterator[None]:
    write_tree(tree, folder)
    yield
    shutil.rmtree(folder)

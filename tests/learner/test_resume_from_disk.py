"""What a checkpoint on disk gives back, in a learner of its own or in a new process: the bits of the run
that was never interrupted, and its logs to the byte."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from exactness import STEPS, Setup, differences, everything, logs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_exact_resume import ALL_PARTS, PARTS, Walk, operations, setups, straight_run

disk_operations = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("save and die"), st.just(0)),
        st.tuples(st.just("die"), st.just(0)),
        st.tuples(st.just("load"), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=4,
)
programs = st.tuples(operations, disk_operations).flatmap(lambda both: st.permutations([*both[0], *both[1]]))


class DiskWalk(Walk):
    """Carries out a program in one directory, with learners that come and go."""

    def __init__(self, setup: Setup, root: Path) -> None:
        super().__init__(replace(setup, files=True), root)
        self.saved: list[str] = []

    def fresh(self) -> tuple[Path, Any]:
        """Another learner, which knows nothing, in another directory."""
        self.saved = []
        if self.count:
            self.drain()
        return super().fresh()

    def do(self, verb: str, number: int) -> None:
        if verb == "save":
            self.saved.append(self.learner.save())
        elif verb == "save and die":
            self.saved.append(self.learner.save())
            self.reopen("latest")
        elif verb == "die":
            self.die()
        elif verb == "load":
            self.load(number)
        else:
            super().do(verb, number)

    def die(self) -> None:
        """Nothing of the learner is left but its directory."""
        known = self.learner.checkpoints
        self.reopen("latest" if known else None)

    def drain(self) -> None:
        """Threads do not die with a learner that is let go, as they do with a process."""
        self.learner._replica.saving.close()

    def load(self, number: int) -> None:
        here = self.learner._replica.loop.position.key
        known = [
            info.label for info in self.learner.checkpoints if info.label in self.saved or info.key <= here
        ]  # the logs of one that lies ahead were cut, and only the learner that saved it remembers them
        if known:
            self.learner.restore(known[number % len(known)])

    def reopen(self, which: str | None) -> None:
        self.drain()
        self.saved = []
        self.learner = self.setup.learner(self.directory, which)
        if which is None:  # a new run in the old directory
            self.learner.step()


def assert_equal_to_the_straight_run(walk: DiskWalk) -> None:
    final, written = straight_run(replace(walk.setup, files=False))
    assert list(differences(everything(walk.learner), final)) == []
    assert logs(walk.directory) == written


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups, program=programs)
def test_any_program_with_checkpoints_ends_in_the_bits_of_the_straight_run(
    setup: Setup, program: list[tuple[str, int]]
) -> None:
    carry_out(setup, program)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups, program=programs)
@pytest.mark.soak
def test_so_do_two_hundred_programs(setup: Setup, program: list[tuple[str, int]]) -> None:
    carry_out(setup, program)


def carry_out(setup: Setup, program: list[tuple[str, int]]) -> None:
    root = Path(mkdtemp())
    try:
        walk = DiskWalk(setup, root)
        for verb, number in program:
            walk.do(verb, number)
        walk.finish()
        walk.drain()
        assert_equal_to_the_straight_run(walk)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("steps", range(1, STEPS + 1))
def test_a_checkpoint_of_any_step_resumes_in_a_new_learner(
    steps: int, seed: int | None, tmp_path: Path
) -> None:
    walk = DiskWalk(Setup(seed=seed, window=2, scheduler="cycle", ema=True, clip=True), tmp_path)
    walk.do("step", steps)
    walk.do("save and die", 0)
    assert walk.learner.position.iteration == min(steps, 7) + max(0, min(steps - 10, 7))
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("given", [(), ("train",), ("valid",)], ids=["none", "train", "valid"])
@pytest.mark.parametrize("steps", [1, 4, 7, 8, 10, 12, 17, 20])
@pytest.mark.rounds(24)
def test_data_that_comes_with_fit_is_gone_on_with_at_the_same_sample(
    steps: int, given: tuple[str, ...], seed: int | None, tmp_path: Path
) -> None:
    setup = Setup(seed=seed, window=2, scheduler="cycle", files=True)
    first = setup.learner(tmp_path)
    first.step(steps)
    first.save()
    between = setup.learner(tmp_path, "latest", given)
    between.save()  # it knows no place in data that has not come, and keeps what the first one knew
    second = setup.learner(tmp_path, "latest", given)
    second.fit(*(None if split in given else make() for split, make in loaders_of(setup)))
    final, written = straight_run(replace(setup, files=False))
    assert list(differences(everything(second), final)) == []
    assert logs(tmp_path) == written


def test_a_place_is_held_until_its_data_has_come_and_no_longer(tmp_path: Path) -> None:
    """An epoch's order may take hundreds of megabytes."""
    setup = Setup(files=True)
    first = setup.learner(tmp_path)
    first.step(4)
    first.save()
    learner = setup.learner(tmp_path, "latest", ())
    assert sorted(learner._replica.unclaimed()) == [
        "data train",
        "data valid",
        "metrics train",
        "metrics valid",
    ]
    learner._supplies.use(learner, "train", setup.train_loader())
    assert sorted(learner._replica.unclaimed()) == ["data valid", "metrics valid"]


def test_a_fork_before_the_data_came_begins_at_the_same_sample(tmp_path: Path) -> None:
    setup = Setup(seed=None, files=True)
    first = setup.learner(tmp_path / "first")
    first.step(12)
    first.save()
    fork = setup.learner(tmp_path / "first", "latest", ()).fork(tmp_path / "fork")
    fork.fit(setup.train_loader(), setup.valid_loader())
    final, _ = straight_run(replace(setup, files=False))
    assert list(differences(everything(fork), final)) == []


def loaders_of(setup: Setup) -> list[tuple[str, Any]]:
    return [("train", setup.train_loader), ("valid", setup.valid_loader)]


@pytest.mark.parametrize("seed", [7, None])
def test_a_chain_of_checkpoints_at_every_step_loses_nothing(seed: int | None, tmp_path: Path) -> None:
    walk = DiskWalk(Setup(seed=seed, window=2, scheduler="function", ema=True), tmp_path)
    for _ in range(STEPS):
        walk.do("step", 1)
        walk.do("save and die", 0)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", [7, None])
def test_workers_come_back_to_their_place(seed: int | None, persistent: bool, tmp_path: Path) -> None:
    walk = DiskWalk(Setup(seed=seed, workers=2, persistent=persistent, window=2, scheduler="cycle"), tmp_path)
    for verb, number in [("step", 4), ("save and die", 0), ("step", 9), ("save and die", 0)]:
        walk.do(verb, number)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "shape"])
def test_a_checkpoint_without_any_one_part_ends_otherwise(part: str, tmp_path: Path) -> None:
    """The negative control: restored from disk with one part left as it was made."""
    setup = replace(ALL_PARTS, files=True)
    steps = {"scaler": 12, "early_stopping": 15, "data valid": 9, "metrics valid": 9}.get(part, 5)
    first = setup.learner(tmp_path)
    first.step(steps)
    first.save()

    second = setup.learner(tmp_path)
    second._replica.parts[part].restore = lambda state: None  # type: ignore[method-assign]
    second.restore("latest")
    second.fit()

    final, written = straight_run(ALL_PARTS)
    assert list(differences(everything(second), final)) != [] or logs(tmp_path) != written

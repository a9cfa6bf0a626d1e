"""Whatever a person does on the way (step, pause, stop, capture, restore, rewind), the end is the
straight run's: every bit of the state, every byte of the logs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from exactness import EPOCHS, STEPS, Setup, differences, disturb, everything, logs, straight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notebook_learner import Learner, Paused, Position, State, StateError
from notebook_learner.breakpoint import EveryNSteps, GradNorm, LossSpike, MetricIs

setups = st.builds(
    Setup,
    seed=st.sampled_from([7, None]),
    window=st.integers(1, 4),
    scheduler=st.sampled_from(["none", "cycle", "epoch", "function"]),
    clip=st.booleans(),
    ema=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    own_generator=st.booleans(),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("pause in"), st.integers(1, 9)),
        st.tuples(st.just("stop in"), st.integers(1, 9)),
        st.tuples(st.just("run to"), st.integers(0, STEPS)),
        st.tuples(st.just("capture"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 9)),
        st.tuples(st.just("restore elsewhere"), st.integers(0, 9)),
        st.tuples(st.just("rewind"), st.integers(1, 15)),
        st.tuples(st.just("epoch"), st.just(0)),
        st.tuples(st.just("what if"), st.integers(1, 9)),
        st.tuples(st.just("inspect"), st.integers(0, 2)),
        st.tuples(st.just("lr find"), st.integers(10, 20)),
        st.tuples(st.just("fork"), st.just(0)),
        st.tuples(st.just("break"), st.integers(0, 4)),
    ),
    min_size=1,
    max_size=6,
)


MINE = (torch.linspace(-1, 1, 24).view(4, 6), torch.tensor([0, 1, 2, 0]))
CONDITIONS = [
    lambda: EveryNSteps(4),
    lambda: GradNorm(above=0.7),
    lambda: LossSpike(z=0.5, warmup=3),
    lambda: lambda moment: float(moment.loss) < 1.0,
    lambda: MetricIs("Loss", "<", 1.05, split="valid"),
]
"""Kinds that are planned, measured before the update, after backward, asked, and read from metrics."""


@lru_cache(maxsize=256)
def straight_run(setup: Setup) -> tuple[dict[str, Any], dict[str, bytes]]:
    directory = Path(mkdtemp())
    try:
        return straight(setup, directory)
    finally:
        shutil.rmtree(directory)


class Walk:
    """Carries out a program on a learner."""

    def __init__(self, setup: Setup, root: Path) -> None:
        self.setup = setup
        self.root = root
        self.count = 0
        self.captured: list[State] = []
        self.directory, self.learner = self.fresh()
        self.captured.append(self.learner.capture())

    def fresh(self) -> tuple[Path, Learner]:
        self.count += 1
        directory = self.root / str(self.count)
        return directory, self.setup.learner(directory)

    def do(self, verb: str, number: int) -> None:
        learner = self.learner
        if verb == "step" and learner.status != "finished":
            learner.step(number)
        elif verb in ("pause in", "stop in"):
            self.interrupted_fit(verb.split()[0], number)
        elif verb == "run to":
            learner.run_until(place(number))
        elif verb == "capture":
            self.captured.append(learner.capture())
        elif verb == "restore":
            learner.restore(self.captured[number % len(self.captured)])
        elif verb == "restore elsewhere":
            state = self.captured[number % len(self.captured)]
            self.directory, self.learner = self.fresh()
            self.learner.restore(state)
        elif verb == "rewind" and learner.position.key != Position().key:
            self.rewind(number)
        elif verb == "epoch":
            learner.step_epoch()
        elif verb == "break":
            self.break_on(CONDITIONS[number])
        elif verb == "inspect":
            learner.inspect([None, "next", MINE][number])
        elif verb in ("what if", "lr find", "fork") and learner.status != "finished":
            self.try_out(verb, number)
        if learner.status != "ready":  # before its first step an unseeded run goes by the user's generators
            disturb()

    def interrupted_fit(self, verb: str, steps: int) -> None:
        """`fit`, with a request coming out of a step: as from another thread, but repeatable."""
        learner = self.learner
        left = [steps]
        loss = learner._replica.loop.passes["train"].step.function.args[1]

        def asking(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                getattr(learner, verb)()
            return loss(*args)

        functions = [each.step for each in learner._replica.loop.passes.values()]
        before = [step.function for step in functions]
        for step in functions:
            model, _, kind = step.function.args
            step.function = type(step.function)(step.function.func, model, asking, kind)
        try:
            learner.fit()
        except Paused:
            assert learner.status == "paused"
        finally:
            for step, function in zip(functions, before, strict=True):
                step.function = function

    def try_out(self, verb: str, number: int) -> None:
        if verb == "what if":
            self.learner.what_if(number, lr=0.5, clip_norm=0.1)
        elif verb == "lr find":
            self.learner.tools.lr_find(1e-4, 1.0, steps=number)
        else:
            self.count += 1
            self.directory = self.root / str(self.count)
            self.learner = self.learner.fork(self.directory)

    def break_on(self, condition: Any) -> None:
        """Until it hits for the first time, if it does."""
        learner = self.learner
        breakpoint = learner.breakpoints.add(condition(), once=True)
        try:
            learner.fit()
        except Paused:
            assert breakpoint.hits == 1
        learner.breakpoints.clear()

    def rewind(self, steps: int) -> None:
        before = self.learner.position
        try:
            assert self.learner.rewind(steps).exact
        except StateError as error:  # a state from elsewhere brings no keyframes before itself
            assert "no keyframe" in str(error)
            assert self.learner.position == before

    def finish(self) -> None:
        if self.learner.status != "finished":
            self.learner.fit()


def place(steps: int) -> Position:
    """The position after so many steps of 7 training and 3 validation batches an epoch."""
    epoch, rest = divmod(steps, 10)
    return Position(epoch + 1, "train", rest) if rest <= 7 else Position(epoch + 1, "valid", rest - 7)


def assert_equal_to_the_straight_run(walk: Walk) -> None:
    final, written = straight_run(walk.setup)
    assert list(differences(everything(walk.learner), final)) == []
    assert numeric(logs(walk.directory)) == numeric(written)


def numeric(written: dict[str, bytes]) -> dict[str, bytes]:
    """Without the texts, of which there is one a block, wherever blocks are cut."""
    return {name: lines for name, lines in written.items() if "Confusion_Matrix" not in name}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups, program=operations)
def test_any_program_ends_in_the_bits_of_the_straight_run(
    setup: Setup, program: list[tuple[str, int]]
) -> None:
    carry_out(setup, program)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups, program=operations)
@pytest.mark.soak
def test_so_do_four_hundred_programs(setup: Setup, program: list[tuple[str, int]]) -> None:
    carry_out(setup, program)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(setup=setups.map(lambda setup: replace(setup, catalogue=True)), program=operations)
@pytest.mark.soak
def test_so_does_one_in_which_every_metric_of_the_catalogue_counts(
    setup: Setup, program: list[tuple[str, int]]
) -> None:
    carry_out(setup, program)


def carry_out(setup: Setup, program: list[tuple[str, int]]) -> None:
    root = Path(mkdtemp())
    try:
        walk = Walk(setup, root)
        for verb, number in program:
            walk.do(verb, number)
        walk.finish()
        assert_equal_to_the_straight_run(walk)
    finally:
        shutil.rmtree(root, ignore_errors=True)  # learners that were left behind may still write there


# Worker processes: fewer examples, since every detour starts new ones ------------------------------------


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        [("step", 3), ("pause in", 2), ("step", 4)],
        [("run to", 5), ("capture", 0), ("step", 9), ("restore", 1), ("stop in", 3)],
        [("run to", 13), ("rewind", 11), ("step", 2), ("rewind", 1)],
        [("run to", 3), ("capture", 0), ("restore elsewhere", 1), ("pause in", 7)],
        [("run to", 8), ("capture", 0), ("run to", 12), ("capture", 0), ("restore", 1), ("restore", 2)],
    ],
    ids=lambda program: "-".join(verb.replace(" ", "_") for verb, _ in program),
)
@pytest.mark.rounds(5)
def test_programs_with_worker_processes_end_in_the_bits_of_the_straight_run(
    program: list[tuple[str, int]], persistent: bool, seed: int | None, tmp_path: Path
) -> None:
    walk = Walk(Setup(seed=seed, workers=2, persistent=persistent, window=2, scheduler="cycle"), tmp_path)
    for verb, number in program:
        walk.do(verb, number)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize(
    "program",
    [
        [("run to", 13), ("rewind", 11)],
        [("run to", 9), ("capture", 0), ("restore elsewhere", 1), ("capture", 0), ("restore elsewhere", 2)],
    ],
    ids=["into their first epoch", "twice without a step"],
)
def test_persistent_workers_live_on_behind_a_return(program: list[tuple[str, int]], tmp_path: Path) -> None:
    """Those of the next epoch are the ones that read the rest of this one, or of which the state tells."""
    walk = Walk(Setup(seed=None, workers=2, persistent=True), tmp_path)
    for verb, number in program:
        walk.do(verb, number)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


def test_a_seeded_run_does_not_depend_on_the_number_of_workers() -> None:
    alone, _ = straight_run(Setup(workers=0))
    helped, _ = straight_run(Setup(workers=2))
    assert list(differences(alone["model"], helped["model"])) == []
    assert list(differences(alone["optimizer"], helped["optimizer"])) == []


# Boundaries, and more than one resume ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_a_state_captured_at_any_boundary_resumes_in_a_fresh_learner(
    steps: int, seed: int | None, tmp_path: Path
) -> None:
    walk = Walk(Setup(seed=seed, window=2, scheduler="cycle", ema=True, clip=True), tmp_path)
    if steps:
        walk.do("step", steps)
    walk.do("capture", 0)
    walk.do("restore elsewhere", 1)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize("where", [(1, "valid", 0), (2, "train", 0), (EPOCHS + 1, "train", 0)])
def test_between_the_splits_and_after_the_last_epoch_there_are_boundaries_too(
    where: tuple[int, str, int], tmp_path: Path
) -> None:
    walk = Walk(Setup(window=3, scheduler="epoch"), tmp_path)
    walk.learner.run_until(where)
    walk.do("capture", 0)
    walk.do("restore elsewhere", 1)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


@pytest.mark.parametrize("seed", [7, None])
def test_a_chain_of_resumes_at_every_step_loses_nothing(seed: int | None, tmp_path: Path) -> None:
    walk = Walk(Setup(seed=seed, window=2, scheduler="function", ema=True), tmp_path)
    for link in range(STEPS):
        walk.do("step", 1)
        walk.do("capture", 0)
        walk.do("restore elsewhere", link + 1)
    walk.finish()
    assert_equal_to_the_straight_run(walk)


# The negative control: each part of the state is needed ----------------------------------------------------

ALL_PARTS = Setup(
    seed=None, window=3, scheduler="function", ema=True, precision="fp16", own_generator=True, carries=True
)
"""fp16 for the scaler; unseeded, so that the order of the data hangs on captured generators."""


def parts_of(setup: Setup, directory: Path) -> list[str]:
    return list(setup.learner(directory)._replica.parts)


def test_the_control_covers_every_part_there_is(tmp_path: Path) -> None:
    assert parts_of(ALL_PARTS, tmp_path) == PARTS


PARTS = [
    "model",
    "optimizer",
    "scheduler",
    "shape",
    "window",
    "rng",
    "loop",
    "carried",
    "scaler",
    "ema",
    "early_stopping",
    "data train",
    "metrics train",
    "data valid",
    "metrics valid",
]


@pytest.mark.parametrize("part", [part for part in PARTS if part != "shape"])
def test_without_any_one_part_the_end_is_another(part: str, tmp_path: Path) -> None:
    """Restored into a fresh learner with one part left as it was made: the comparison must notice. The shape
    has its control in `test_shapes_by_hand.py`."""
    steps = {"scaler": 12, "early_stopping": 15, "data valid": 9, "metrics valid": 9}.get(part, 5)
    first = ALL_PARTS.learner(tmp_path / "a")
    first.step(steps)
    state = first.capture()

    second = ALL_PARTS.learner(tmp_path / "b")
    second._replica.parts[part].restore = lambda state: None  # type: ignore[method-assign]
    second.restore(state)
    second.fit()

    final, written = straight_run(ALL_PARTS)
    assert list(differences(everything(second), final)) != [] or logs(tmp_path / "b") != written

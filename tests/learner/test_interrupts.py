"""Ctrl-C and the kernel's interrupt button: pause at the boundary, whenever they come; a second one breaks
off a step that hangs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from driver_support import (
    A_TRAIN,
    A_VALID,
    BATCH,
    TRAIN,
    Bench,
    Boom,
    Samples,
    Trouble,
    assert_ended_like,
    assert_same_batch,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
    loaders,
    steps_taken,
)
from IPython.core.interactiveshell import InteractiveShell
from torch.utils.data import DataLoader

from notebook_learner import LearnerBuilder, Paused, Position
from notebook_learner.event import (
    EpochEnded,
    Event,
    MetricBlock,
    Rewound,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.logger import FileMetricLogger

SOON = 30.0
PLACES = [
    ("forward", (1, "train", 3)),
    ("backward", (1, "train", 4)),
    ("optimizer's", (1, "train", 5)),
    ("metric", (2, "train", 6)),
    ("valid_step", (1, "valid", 1)),
]


def interrupt(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def strikes(b: Bench, place: str, where: tuple[int, str, int], times: int = 1) -> None:
    """Interrupt at one place of one step."""
    b.trouble.where = where
    b.trouble.calls[place] = lambda: interrupt(times) if b.trouble.here() else None


@pytest.fixture(autouse=True)
def handlers() -> Iterator[Any]:
    """Whatever happens, the handler of before is back."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    assert signal.getsignal(signal.SIGINT) is before


# The first ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "where"), [each for each in PLACES if each[0] != "optimizer's"])
def test_the_first_lets_the_step_finish_and_pauses_at_its_boundary(
    place: str, where: tuple[int, str, int], tmp_path: Path
) -> None:
    b = bench(tmp_path)
    strikes(b, place, where)

    with pytest.raises(Paused) as paused:
        b.learner.fit()

    at = b.learner.position
    assert (at.epoch, at.split, at.step) == (where[0], where[1], where[2] + 1)
    assert str(paused.value) == f"paused at {at}; fit() goes on from here, learner.step() takes one step"
    assert b.tape.statuses == [("running", ""), ("paused", "")]
    assert_stands_like(b.learner, by_hand())
    disturb()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_paused_ends_run_all_and_is_not_swallowed_by_code_that_expects_errors(tmp_path: Path) -> None:
    b = bench(tmp_path)
    strikes(b, "forward", (1, "train", 3))
    with pytest.raises(KeyboardInterrupt):
        try:
            b.learner.fit()
        except Exception as error:  # a hyper-parameter search
            raise AssertionError("swallowed") from error


class Striking(Samples):
    """A dataset in whose loading the interrupt comes."""

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            interrupt()
        return super().__getitem__(index)


def test_in_the_middle_of_loading_a_batch(tmp_path: Path) -> None:
    _, valid = loaders()
    b = bench(tmp_path, data=(DataLoader(Striking(TRAIN, 1), batch_size=BATCH, shuffle=True), valid))
    for _ in range(2):  # once an epoch
        with pytest.raises(Paused):
            b.learner.fit()
        assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


class StrikingSink:
    """Interrupts as an event is handled: between steps, in a logger, on the way to the disk."""

    def __init__(self, kind: type[Event], count: int, times: int = 1) -> None:
        self.kind, self.left, self.times = kind, count, times

    def handle(self, event: Event, /) -> None:
        if isinstance(event, self.kind):
            self.left -= 1
            if self.left == 0:
                interrupt(self.times)


@pytest.mark.parametrize("times", [1, 3], ids=["once", "and again"])
@pytest.mark.parametrize("role", ["renderer", "metric_logger"])
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (StatusChanged, 1),
        (SplitStarted, 1),
        (SplitStarted, 2),
        (MetricBlock, 1),
        (MetricBlock, 4),
        (SplitEnded, 1),
        (SplitEnded, 2),
        (EpochEnded, 1),
        (EpochEnded, 2),
    ],
)
def test_between_steps_none_breaks_anything_off(
    kind: type[Event], count: int, role: str, times: int, tmp_path: Path
) -> None:
    """Only a step may be broken off: a logger that is in the middle of a line may not."""
    sink = StrikingSink(kind, count, times)

    def configure(builder: LearnerBuilder) -> None:
        builder.metric_logger(FileMetricLogger(tmp_path))
        getattr(builder, role)(sink)

    b = bench(tmp_path, configure=configure)
    with pytest.raises(Paused):
        b.learner.fit()

    assert b.learner.status == "paused"
    assert_stands_like(b.learner, by_hand())
    disturb()
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("place", ["compute", "scheduler"])
def test_at_the_end_of_an_epoch_the_end_is_finished_first(place: str, tmp_path: Path) -> None:
    b = bench(tmp_path)
    strikes(b, place, (1, "valid", A_VALID), times=2)

    with pytest.raises(Paused):
        b.learner.fit()

    assert str(b.learner.position) == "epoch 2, train, step 0 of 7"
    assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_one_that_comes_when_training_is_over_still_ends_the_cell(tmp_path: Path) -> None:
    """ "Run all" stops there; `fit()` then has nothing left to do."""
    sink = StrikingSink(StatusChanged, 2)
    b = bench(tmp_path, configure=lambda builder: builder.renderer(sink))

    with pytest.raises(Paused, match="paused at epoch 2, valid, step 3 of 3"):
        b.learner.fit()

    assert_ended_like(b, by_hand())
    assert b.learner.fit() is b.learner.model


@pytest.mark.parametrize("verb", ["rewind", "restore", "step"])
def test_one_that_comes_when_a_verb_is_as_good_as_done_ends_the_cell_too(verb: str, tmp_path: Path) -> None:
    sink = StrikingSink(StatusChanged if verb == "step" else Rewound, 2 if verb == "step" else 1)
    b = bench(tmp_path, configure=lambda builder: builder.renderer(sink))
    state = b.learner.capture()
    if verb != "step":
        b.learner.step(3)
    calls: dict[str, Callable[[], Any]] = {
        "rewind": lambda: b.learner.rewind(2),
        "restore": lambda: b.learner.restore(state),
        "step": b.learner.step,
    }

    with pytest.raises(Paused):
        calls[verb]()

    assert b.learner.position.step == (0 if verb == "restore" else 1)
    assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_training_in_another_thread_is_not_the_interrupts_business(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate, struck = threading.Event(), threading.Event()
    b.trouble.where = (1, "train", 3)
    b.trouble.calls["forward"] = lambda: (gate.set(), struck.wait(SOON)) if b.trouble.here() else None
    b.learner.start()
    assert gate.wait(SOON)

    with pytest.raises(KeyboardInterrupt):
        interrupt()  # some other cell's

    struck.set()
    b.learner.wait()
    assert_ended_like(b, by_hand())


def test_where_ipykernel_is_only_imported_a_training_in_another_thread_leaves_the_handler_alone(
    tmp_path: Path,
) -> None:
    import ipykernel  # noqa: F401

    before = signal.getsignal(signal.SIGINT)
    b = bench(tmp_path)
    b.learner.start()
    b.learner.wait()

    assert signal.getsignal(signal.SIGINT) is before
    assert_ended_like(b, by_hand())


# The second --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "where"), PLACES)
def test_the_second_breaks_off_the_step_and_the_learner_stands_before_it(
    place: str, where: tuple[int, str, int], tmp_path: Path
) -> None:
    trouble = Trouble("optimizer", where) if place == "optimizer's" else Trouble()
    b = bench(tmp_path, trouble)
    strikes(b, place.replace("'s", ""), where, times=2)  # the optimizer's: parameters have moved by then

    with pytest.raises(KeyboardInterrupt) as broken:
        b.learner.fit()

    assert type(broken.value) is KeyboardInterrupt
    at = b.learner.position
    assert (at.epoch, at.split, at.step) == where
    assert broken.value.__notes__ == [
        f"The learner stands before this step, at {at}; it was not counted. fit() goes on from there."
    ]
    assert b.tape.statuses == [("running", ""), ("paused", "KeyboardInterrupt")]
    assert_stands_like(b.learner, by_hand())
    assert_same_batch(b.learner.batch, by_hand().batches[steps_taken(b.learner)])
    disturb()
    b.trouble.calls.clear()
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_a_step_that_hangs_is_left_at_once(tmp_path: Path) -> None:
    """As a person does it: once, it takes no effect, again."""
    b = bench(tmp_path)
    hanging, never = threading.Event(), threading.Event()
    b.trouble.where = (1, "train", 3)
    control, main = b.learner._replica.loop.control, threading.main_thread().ident
    assert main is not None

    def hang() -> None:
        if b.trouble.here():
            hanging.set()
            while not never.wait(0.05):  # in turns: a signal just before one wait is heard after it
                pass

    b.trouble.calls["forward"] = hang

    def person() -> None:
        assert hanging.wait(SOON)
        signal.pthread_kill(main, signal.SIGINT)
        while not control.interrupted:
            pass
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=person)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        b.learner.fit()
    helper.join()

    assert not never.is_set()
    assert b.learner.position.key == Position(1, "train", 3).key
    assert_stands_like(b.learner, by_hand())
    b.trouble.calls.clear()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_a_third_during_the_way_back_is_heard_but_breaks_nothing(tmp_path: Path) -> None:
    """The replay may end early, at a boundary before; what comes then is the same."""
    b = bench(tmp_path)
    trouble = b.trouble
    trouble.where = (1, "train", 5)

    def strike() -> None:
        loop = b.learner._replica.loop
        if trouble.here():
            interrupt(2)
        elif not loop.breakable and loop.done == 2:
            interrupt(3)

    trouble.calls["forward"] = strike
    with pytest.raises(KeyboardInterrupt):
        b.learner.fit()

    assert b.learner.status == "paused"
    assert b.learner.position <= Position(1, "train", 5)
    assert len(b.learner.history["train", "Loss"]) == b.learner.position.step
    assert_stands_like(b.learner, by_hand())
    trouble.calls.clear()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_one_during_the_way_back_from_an_error_does_not_hide_the_error(tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", 5)))

    def strike() -> None:
        loop = b.learner._replica.loop
        if not loop.breakable and loop.done == 2:
            interrupt()

    b.trouble.calls["forward"] = strike
    with pytest.raises(Boom):
        b.learner.fit()

    assert b.learner.status == "failed"
    assert_stands_like(b.learner, by_hand())
    b.trouble.calls.clear()
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


# What is there before and after ----------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda signum, frame: None])
def test_whatever_handler_was_there_the_learner_listens_and_puts_it_back(
    handler: Any, tmp_path: Path
) -> None:
    b = bench(tmp_path)
    strikes(b, "forward", (1, "train", 3))
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(Paused):
            b.learner.fit()
        assert signal.getsignal(signal.SIGINT) == handler
        b.learner.fit()
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert_ended_like(b, by_hand())


# What IPython shows ----------------------------------------------------------------------------------------


def shown_by_ipython(code: str, **names: Any) -> str:
    """What a real shell prints for a cell."""
    shell = InteractiveShell.instance(colors="nocolor")
    shell.user_ns.update(names)
    printed, sys.stdout = sys.stdout, StringIO()
    try:
        shell.run_cell(code)
        return sys.stdout.getvalue()
    finally:
        sys.stdout = printed


def test_in_ipython_a_pause_is_one_quiet_line(tmp_path: Path) -> None:
    b = bench(tmp_path)
    strikes(b, "forward", (1, "train", 3))
    shown = shown_by_ipython("learner.fit()", learner=b.learner)
    assert shown == (
        "paused at epoch 1, train, step 4 of 7; fit() goes on from here, learner.step() takes one step\n"
    )


def test_in_ipython_a_step_broken_off_shows_where_it_hung_and_where_the_learner_stands(
    tmp_path: Path,
) -> None:
    b = bench(tmp_path)
    strikes(b, "forward", (1, "train", A_TRAIN - 1), times=2)
    shown = shown_by_ipython("learner.fit()", learner=b.learner)
    assert "KeyboardInterrupt" in shown
    assert 'self.trouble.at("forward")' in shown
    assert "The learner stands before this step, at epoch 1, train, step 6 of 7" in shown


def test_in_ipython_the_last_expression_of_a_cell_is_the_learner_in_one_line(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(2)
    assert "Learner(paused, epoch 1, train, step 2 of 7; Net, 99 parameters, " in shown_by_ipython(
        "learner", learner=b.learner
    )

"""What fails beside the step: a checkpoint that cannot be kept, a renderer, a logger on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_support import (
    assert_ended_like,
    assert_stands_like,
    bench,
    by_hand,
    chain,
    disturb,
    fit_fails,
    note_of,
    steps_taken,
)

from notebook_learner import (
    LoggerError,
    MemoryCheckpointer,
    State,
)
from notebook_learner.event import Event, MetricBlock, StatusChanged
from notebook_learner.logger import FileMetricLogger

IN_TRAINING = ["forward", "forward's end", "backward", "metric"]
WINDOWS_END = [(1, "train", 1), (1, "train", 5), (1, "train", 6), (2, "train", 3)]  # 6 is a short window


class FullStore(MemoryCheckpointer):
    """A checkpointer without space, until there is some."""

    full = True

    def save(self, epoch: int, state: State, /) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().save(epoch, state)


def test_a_checkpoint_that_could_not_be_kept_is_kept_once_the_cause_is_gone(tmp_path: Path) -> None:
    store = FullStore()
    b = bench(tmp_path, configure=lambda builder: builder.with_checkpointer(store))

    error = fit_fails(b, OSError)

    assert note_of(error) == (
        "The learner stands at epoch 2, train, step 0 of 7. Fix the cause and call fit() to go on."
    )
    assert_stands_like(b.learner, by_hand())
    store.full = False
    b.learner.fit()
    assert_ended_like(b, by_hand())
    assert list(store.states) == [1, 2]


class Broken:
    """A renderer that fails."""

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, event: Event, /) -> None:
        self.handled += 1
        if isinstance(event, MetricBlock):
            raise ValueError("no screen")


def test_a_failing_renderer_is_reported_once_and_let_go(tmp_path: Path) -> None:
    broken = Broken()
    b = bench(tmp_path, configure=lambda builder: builder.renderer(broken))

    b.learner.fit()

    assert_ended_like(b, by_hand())
    log = (tmp_path / "experiment.log").read_text()
    assert log.count("Broken failed (ValueError: no screen) and shows nothing more; training goes on") == 1
    handled = broken.handled
    b.learner.fit(epochs=1)
    assert broken.handled == handled


class FullDisk(FileMetricLogger):
    """A file logger whose disk fills up at the k-th block of an epoch's split, until there is space."""

    def __init__(self, directory: Path, when: type[Event], count: int) -> None:
        super().__init__(directory)
        self.when = when
        self.left = count
        self.full = False

    def handle(self, event: Event, /) -> None:
        if isinstance(event, self.when):
            self.left -= 1
            self.full = self.full or self.left == 0
        super().handle(event)

    def _write_out(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super()._write_out()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_failing_logger_stops_training_at_a_boundary_and_nothing_is_lost(
    count: int, tmp_path: Path
) -> None:
    disk = FullDisk(tmp_path, MetricBlock, count)
    b = bench(tmp_path, configure=lambda builder: builder.metric_logger(disk))

    error = fit_fails(b, LoggerError)

    assert any(isinstance(each, OSError) for each in chain(error))
    assert "No space left on device" in str(error)
    assert b.learner.status == "failed"
    assert_stands_like(b.learner, by_hand())
    stood = steps_taken(b.learner)
    fit_fails(b, LoggerError)
    assert steps_taken(b.learner) == stood, "while the disk is full no step is taken"
    disk.full = False
    disturb()
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("count", [1, 2])
def test_a_logger_that_fails_at_a_change_of_status_says_so_too(count: int, tmp_path: Path) -> None:
    """At the start of a run, and at its very end, when no boundary is left to stop at."""
    disk = FullDisk(tmp_path, StatusChanged, count)
    b = bench(tmp_path, configure=lambda builder: builder.metric_logger(disk))

    fit_fails(b, LoggerError)

    assert b.learner.status == ("failed" if count == 1 else "finished")
    disk.full = False
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_a_logger_that_fails_only_at_the_pause_does_not_fail_the_next_run(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path, StatusChanged, 2)
    b = bench(tmp_path, configure=lambda builder: builder.metric_logger(disk))
    with pytest.raises(LoggerError):
        b.learner.step(3)
    assert_stands_like(b.learner, by_hand())
    disk.full = False

    b.learner.fit()

    assert_ended_like(b, by_hand())


# The parts ----------------------------------------------------------------------------------------------

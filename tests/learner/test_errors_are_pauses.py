"""An exception is a pause, not a loss: the learner stands before the step that failed, everything as it
was, and goes on to the bits of the straight run once the cause is fixed."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_support import Stream
from driver_support import (
    A_TRAIN,
    A_VALID,
    BATCH,
    TRAIN,
    VALID,
    Bench,
    Boom,
    Samples,
    Trouble,
    assert_ended_like,
    assert_equals,
    assert_same_batch,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
    fit_fails,
    loaders,
    note_of,
    steps_taken,
)
from torch import Tensor
from torch.utils.data import DataLoader

from notebook_learner import (
    LearnerBuilder,
    Position,
)

IN_TRAINING = ["forward", "forward's end", "backward", "metric"]
WINDOWS_END = [(1, "train", 1), (1, "train", 5), (1, "train", 6), (2, "train", 3)]  # 6 is a short window


def assert_stands_before(b: Bench, where: tuple[int, str, int]) -> None:
    at = b.learner.position
    assert (at.epoch, at.split, at.step) == where
    assert b.learner.status == "failed"
    assert_stands_like(b.learner, by_hand())


def assert_goes_on_once_fixed(b: Bench, error: type[BaseException] = Boom) -> None:
    """Not fixed it fails again, without a trace; fixed it ends as if nothing had happened."""
    where = b.learner.position.key
    disturb()
    fit_fails(b, error)
    assert b.learner.position.key == where
    assert_stands_like(b.learner, by_hand())
    disturb()
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


# The places of a step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [(1, "train", 0), (1, "train", 3), (1, "train", 4), (2, "train", 6)])
@pytest.mark.parametrize("place", IN_TRAINING)
def test_an_exception_in_a_training_step(place: str, where: tuple[int, str, int], tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble(place, where))

    error = fit_fails(b)

    assert_stands_before(b, where)
    assert_same_batch(b.learner.batch, by_hand().batches[steps_taken(b.learner)])
    assert_goes_on_once_fixed(b)
    assert note_of(error) == (
        f"The learner stands before this step, at epoch {where[0]}, train, step {where[2]} of 7; it was not "
        "counted. Fix the cause and call fit() to go on. learner.batch is the batch at hand."
    )


@pytest.mark.parametrize("where", WINDOWS_END)
def test_an_optimizer_that_raises_after_it_moved_some_parameters(
    where: tuple[int, str, int], tmp_path: Path
) -> None:
    b = bench(tmp_path, Trouble("optimizer", where))

    fit_fails(b)

    assert_stands_before(b, where)
    assert_same_batch(b.learner.batch, by_hand().batches[steps_taken(b.learner)])
    assert_goes_on_once_fixed(b)


@pytest.mark.parametrize("place", ["valid_step", "metric"])
@pytest.mark.parametrize("where", [(1, "valid", 0), (1, "valid", 2), (2, "valid", 1)])
def test_an_exception_in_validation(place: str, where: tuple[int, str, int], tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble(place, where))

    error = fit_fails(b)

    assert_stands_before(b, where)
    assert_same_batch(b.learner.batch, by_hand().batches[steps_taken(b.learner)])
    assert f"before this step, at epoch {where[0]}, valid, step {where[2]} of 3" in note_of(error)
    assert_goes_on_once_fixed(b)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_scheduler_that_raises_at_the_end_of_an_epoch(epoch: int, tmp_path: Path) -> None:
    """It has changed the rate by then."""
    b = bench(tmp_path, Trouble("scheduler", (epoch, "valid", A_VALID)))

    error = fit_fails(b)

    assert_stands_before(b, (epoch, "valid", A_VALID))
    assert note_of(error) == (
        f"The learner stands at epoch {epoch}, valid, step 3 of 3. Fix the cause and call fit() to go on."
    )
    assert_goes_on_once_fixed(b)


@pytest.mark.parametrize("where", [(1, "train", A_TRAIN), (1, "valid", A_VALID), (2, "train", A_TRAIN)])
def test_a_metric_that_cannot_compute_the_value_of_a_split(
    where: tuple[int, str, int], tmp_path: Path
) -> None:
    b = bench(tmp_path, Trouble("compute", where))

    error = fit_fails(b)

    assert_stands_before(b, where)
    assert note_of(error).startswith(f"The learner stands at epoch {where[0]}, {where[1]}, step")
    assert_goes_on_once_fixed(b)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read(workers: int, tmp_path: Path) -> None:
    """With workers it was fetched ahead, by a process that holds its own copy of the dataset."""
    unreadable = tmp_path / "unreadable"
    unreadable.touch()
    run = tmp_path / "run"
    b = bench(run, workers=workers, unreadable=(11, unreadable))
    sample = by_hand_sample(11)
    failing = next(k for k, (x, _) in enumerate(by_hand(workers).batches) if (x == sample).all(1).any())

    error = fit_fails(b)

    assert steps_taken(b.learner) == failing
    assert b.learner.status == "failed"
    assert_stands_like(b.learner, by_hand(workers))
    assert "sample 11 cannot be read" in str(error)
    assert note_of(error) == (
        f"The learner stands at {b.learner.position}, before the batch that could not be loaded. "
        "Fix the cause and call fit() to go on."
    )
    disturb()
    fit_fails(b)
    assert steps_taken(b.learner) == failing
    unreadable.unlink()
    b.learner.fit()
    assert_ended_like(b, by_hand(workers))


def test_a_sample_that_is_mended_at_once_is_read_anew(tmp_path: Path) -> None:
    """On the way back workers fetch ahead, and meet it a second time before it is mended."""
    unreadable = tmp_path / "unreadable"
    unreadable.touch()
    b = bench(tmp_path / "run", workers=2, unreadable=(11, unreadable))
    fit_fails(b)
    assert b.learner.position.step > 0

    unreadable.unlink()
    b.learner.fit()

    assert_ended_like(b, by_hand(2))


def noisy(samples: list[Any]) -> Any:
    """A collate function that draws random numbers."""
    x, y = torch.utils.data.default_collate(samples)
    return x + torch.randn_like(x), y


@pytest.mark.parametrize("memory", [None, 1], ids=["a keyframe", "no keyframe"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_with_random_noise_are_the_same_ones_afterwards(
    workers: int, memory: int | None, tmp_path: Path
) -> None:
    """A seeded run; by hand its noise cannot be drawn, so it is compared with one without an error."""

    def seeded(directory: Path, trouble: Trouble) -> Bench:
        how: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "collate_fn": noisy}
        data = DataLoader(Samples(TRAIN, 1), shuffle=True, **how), DataLoader(Samples(VALID, 2), **how)
        return bench(directory, trouble, data=data, configure=lambda b: b.seed(7).keyframes(memory=memory))

    straight = seeded(tmp_path / "straight", Trouble())
    straight.learner.fit()
    b = seeded(tmp_path / "run", Trouble("forward", (1, "train", 4)))
    fit_fails(b)
    disturb()
    b.trouble.fix()
    b.learner.fit()

    for split in ("train", "valid"):
        assert b.learner.history[split, "Loss"].tolist() == straight.learner.history[split, "Loss"].tolist()


def by_hand_sample(index: int) -> Tensor:
    train, _ = loaders()
    return train.dataset[index][0]


@pytest.fixture
def brief_farewells(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch waits five seconds for each worker that a killed one left without its queue."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()


@pytest.fixture
def unheard() -> Iterator[None]:
    """torch hears of a dead worker by a signal, if that comes first, or else finds it missing."""
    heard = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, heard)


def kills_a_worker(b: Bench) -> None:
    """In the step of `b.trouble.where`, once."""

    def kill() -> None:
        if b.trouble.broken and b.trouble.here():
            b.trouble.fix()
            pid = b.learner._replica.loop.current.cursor._inner._workers[0].pid
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, and left for torch to find

    b.trouble.broken = True
    b.trouble.calls["forward"] = b.trouble.calls["valid_step"] = kill


@pytest.mark.usefixtures("brief_farewells")
@pytest.mark.parametrize("where", [(1, "train", 3), (1, "valid", 1), (2, "train", 0)])
def test_a_worker_process_that_is_killed(where: tuple[int, str, int], tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble(where=where), workers=2)
    kills_a_worker(b)

    error = fit_fails(b, RuntimeError)

    assert "killed by signal" in str(error)
    at = b.learner.position
    assert ((at.epoch, at.split, at.step), b.learner.status) == (where, "failed")
    assert_stands_like(b.learner, by_hand(2))
    b.learner.fit()
    assert_ended_like(b, by_hand(2))


@pytest.mark.usefixtures("brief_farewells", "unheard")
def test_a_worker_process_that_is_found_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._SIGCHLD_handler_set", True)
    b = bench(tmp_path, Trouble(where=(1, "train", 3)), workers=2)
    kills_a_worker(b)

    fit_fails(b, (RuntimeError, OSError))  # torch's own, or a connection that broke with the process

    assert b.learner.status == "failed"
    assert b.learner.position > Position(1, "train", 3)
    assert_stands_like(b.learner, by_hand(2))
    b.learner.fit()
    assert_ended_like(b, by_hand(2))


def test_out_of_memory_is_an_error_like_any_other(tmp_path: Path) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    b = bench(tmp_path, Trouble("forward's end", (1, "train", 5), error))

    caught = fit_fails(b, torch.OutOfMemoryError)

    assert caught is error
    assert_stands_before(b, (1, "train", 5))
    assert_goes_on_once_fixed(b, torch.OutOfMemoryError)
    assert len(error.__notes__) == 1, "one exception object, raised twice, and one note"


def test_errors_one_after_the_other_all_the_way(tmp_path: Path) -> None:
    """Each place in turn, at ever later steps, without a whole epoch in between."""
    trouble = Trouble()
    b = bench(tmp_path, trouble)
    for place, where in [
        ("forward", (1, "train", 0)),
        ("optimizer", (1, "train", 1)),
        ("backward", (1, "train", 2)),
        ("metric", (1, "train", 4)),
        ("compute", (1, "train", A_TRAIN)),
        ("valid_step", (1, "valid", 2)),
        ("scheduler", (1, "valid", A_VALID)),
        ("forward", (2, "train", 0)),
        ("optimizer", (2, "train", 6)),
        ("compute", (2, "valid", A_VALID)),
    ]:
        trouble.place, trouble.where, trouble.broken = place, where, True
        fit_fails(b)
        assert_stands_before(b, where)
        disturb()
    trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("verb", ["step", "step_epoch", "run_until"])
def test_the_verbs_that_step_fail_the_same_way(verb: str, tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("backward", (1, "train", 3)))
    calls = {"step": (9,), "step_epoch": (), "run_until": ((2, 0),)}

    with pytest.raises(Boom):
        getattr(b.learner, verb)(*calls[verb])

    assert_stands_before(b, (1, "train", 3))
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


# What the person sees ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("forward", 'self.trouble.at("forward")'),
        ("backward", 'ctx.trouble.at("backward")'),
        ("optimizer", 'self.trouble.at("optimizer")'),
        ("metric", 'self.trouble.at("metric")'),
        ("compute", 'self.trouble.at("compute")'),
    ],
)
def test_the_traceback_ends_on_the_users_line(place: str, line: str, tmp_path: Path) -> None:
    where = (1, "train", A_TRAIN) if place == "compute" else (1, "train", 3)
    error = fit_fails(bench(tmp_path, Trouble(place, where)))

    *_, users, raising = traceback.extract_tb(error.__traceback__)
    assert users.line == line
    assert raising.line == 'raise self.error or Boom(f"in the {place}")'


def test_status_and_log_say_what_failed_and_where(tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", 3)))
    fit_fails(b)

    assert b.tape.statuses == [("running", ""), ("failed", "Boom: in the forward")]
    assert (
        "failed at epoch 1, train, step 3 of 7: Boom: in the forward"
        in (tmp_path / "experiment.log").read_text()
    )
    assert repr(b.learner).startswith("Learner(failed, epoch 1, train, step 3 of 7; ")


def test_what_was_measured_before_the_error_is_on_disk(tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", 5)))
    fit_fails(b)
    lines = (tmp_path / "train" / "epoch-1" / "Loss.log").read_text().splitlines()
    assert [float(line.split(",")[0]) for line in lines] == by_hand().losses[1, "train"][:5]


def test_the_output_is_not_that_of_another_batch(tmp_path: Path) -> None:
    """`batch` is the one at hand, so an output of the step before would be taken for its own."""
    b = bench(tmp_path, Trouble("backward", (1, "train", 3)))
    fit_fails(b)
    assert_same_batch(b.learner.batch, by_hand().batches[3])
    assert b.learner.output is None


def test_the_failed_steps_gradients_are_gone(tmp_path: Path) -> None:
    """At the start of a window no gradient is left; inside one those of the steps before are."""
    b = bench(tmp_path, Trouble("optimizer", (1, "train", 5)))
    fit_fails(b)
    assert_equals(b.learner, by_hand().moments[5])

    b = bench(tmp_path / "first", Trouble("backward", (1, "train", 0)))
    fit_fails(b)
    assert all(parameter.grad is None for parameter in b.learner.model.parameters())


# Without a keyframe ------------------------------------------------------------------------------------


def no_keyframes(builder: LearnerBuilder) -> None:
    builder.keyframes(memory=1)


DRAWN = "random generators and running statistics (BatchNorm) may have moved"
MOVED = {
    "forward": f"{DRAWN}; parameters and the optimizer have not",
    "backward": f"{DRAWN}; parameters and the optimizer have not; the window's gradients were dropped",
    "optimizer": f"{DRAWN}, and the optimizer step may be half applied: go back to a checkpoint",
    "metric": f"{DRAWN}, and the optimizer step was applied: going on takes this batch again",
}


@pytest.mark.parametrize("place", MOVED)
def test_where_no_keyframe_fits_the_error_says_what_has_moved(place: str, tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble(place, (1, "train", 5)), configure=no_keyframes)

    error = fit_fails(b)

    at = b.learner.position
    assert (at.epoch, at.split, at.step) == (1, "train", 5)
    assert note_of(error) == (
        "The learner stands before this step, at epoch 1, train, step 5 of 7; it was not counted. "
        f"(not taken back, because no keyframe fits the memory budget: {MOVED[place]}) "
        "Fix the cause and call fit() to go on. learner.batch is the batch at hand."
    )
    assert_same_batch(b.learner.batch, by_hand().batches[5])
    b.trouble.fix()
    b.learner.fit()
    assert b.learner.status == "finished"
    assert len(b.learner.history["train", "Loss"]) == 2 * A_TRAIN


@pytest.mark.parametrize("step", [3, 4], ids=["inside a window", "between two"])
def test_a_forward_that_fails_before_it_moved_anything_loses_nothing_even_so(
    step: int, tmp_path: Path
) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", step)), configure=no_keyframes)
    fit_fails(b)
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("place", ["backward", "metric"])
def test_a_window_that_cannot_be_taken_back_is_dropped_as_a_whole(place: str, tmp_path: Path) -> None:
    """Half a window's gradients, divided by all of its samples, would be a step too short."""
    b = bench(tmp_path, Trouble(place, (1, "train", 3)), configure=no_keyframes)
    fit_fails(b)
    assert b.learner._replica.loop.update.count == 0
    assert all(parameter.grad is None for parameter in b.learner.model.parameters())


@pytest.mark.parametrize(("every", "keyframe"), [(4, 4), (100, 0)])
def test_if_going_back_fails_too_the_learner_stands_at_the_keyframe(
    every: int, keyframe: int, tmp_path: Path
) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", 6)), configure=lambda it: it.keyframes(every=every))
    steps: list[int] = []

    def fail_on_the_way() -> None:
        step = b.learner._replica.loop.position.step
        again = b.trouble.broken and 6 in steps and step == keyframe + 1
        steps.append(step)
        if again:
            raise Boom("a second time")

    b.trouble.calls["forward"] = fail_on_the_way

    error = fit_fails(b)

    assert steps == [*range(7), keyframe, keyframe + 1]
    assert "in the forward" in str(error)
    assert note_of(error) == (
        f"The learner stands at epoch 1, train, step {keyframe} of 7, the last keyframe before this step: "
        "going back to epoch 1, train, step 6 of 7 failed too: Boom('a second time'). "
        "Fix the cause and call fit() to go on."
    )
    assert_stands_before(b, (1, "train", keyframe))
    disturb()
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_that_keyframes_are_off_is_said_once(tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("forward", (1, "train", 4)), configure=no_keyframes)
    for _ in range(2):
        fit_fails(b)
    b.trouble.fix()
    b.learner.fit()

    (notice,) = b.tape.notices
    assert "more than the memory budget for keyframes" in notice
    assert ".keyframes(memory=...) raises it" in notice


def test_a_loader_that_fails_without_a_keyframe_has_moved_nothing(tmp_path: Path) -> None:
    unreadable = tmp_path / "unreadable"
    unreadable.touch()
    b = bench(tmp_path / "run", unreadable=(11, unreadable), configure=no_keyframes)

    error = fit_fails(b)

    assert "the loader may have drawn random numbers; nothing else has moved" in note_of(error)
    unreadable.unlink()
    b.learner.fit()
    assert b.learner.status == "finished"


def test_an_iterator_that_can_be_walked_only_once_is_not_taken_back_but_goes_on(tmp_path: Path) -> None:
    """The steps before the error cannot be taken again; the batch that failed cannot be had again."""
    batches = [batch for batch in by_hand().batches[:A_TRAIN]]
    b = bench(
        tmp_path,
        Trouble("forward", (1, "train", 4)),
        data=(Stream(batches), None),
        configure=lambda builder: builder.num_epochs(1),
    )
    error = fit_fails(b)

    assert "the loader can be walked only once, so the steps before cannot be taken again" in note_of(error)
    assert_same_batch(b.learner.batch, batches[4])
    b.trouble.fix()
    b.learner.fit()
    assert b.learner.status == "finished"

"""`learner.verify()`: exact, or the first value that differs, with its cause."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import Notices, weights
from test_what_steps_reach import program, straight
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import StateError
from notebook_learner.metric import Loss

SAMPLES, SIZE = 40, 8
DATA = TensorDataset(
    torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0)),
    torch.arange(SAMPLES) % 2,
)


def plain(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def learner_on(
    directory: Path, loader: Any, model: nn.Module | None = None, step: Callable[[Any, Any], Any] = plain
) -> Learner:
    torch.manual_seed(0)
    model = model or nn.Linear(4, 2)
    builder = LearnerBuilder(directory).train_step(step).num_epochs(3).metrics().renderer("silent")
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, loader)


@pytest.mark.parametrize(
    "kind", ["variable of a closure", "replay buffer", "other network and optimizer", "count"]
)
def test_an_exact_run_is_exact_here_and_in_a_new_process_and_nothing_is_left(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = program(tmp_path / "run", kind)
    learner.step(4)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert learner.artifacts.directory  # all files of the steps so far are there
    files = sorted(tmp_path.rglob("*"))
    report = learner.verify(steps=4)  # across the end of the epoch
    assert report.exact and report.differs is None and not report.untried, report
    assert str(report) == (
        "exact: 4 steps from epoch 1, train, step 4 of 5 gave the same bits again, here and in a new process"
    )
    assert sorted(tmp_path.rglob("*")) == files
    learner.fit()
    assert torch.equal(weights(learner), straight(tmp_path / "straight", kind))


class ReadsTheClock(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        return x + time.perf_counter_ns() % 1000 / 1000, y


class HiddenState(Sampler[int]):
    """A sampler that keeps where it is in C."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        start = c_counter()
        return iter([(start + number) % SAMPLES for number in range(SAMPLES)])


class Noise(nn.Module):
    """An operation that is not deterministic."""

    def forward(self, x: Tensor) -> Tensor:
        return x + int.from_bytes(os.urandom(2), "big") * 1e-5


_RAND = ctypes.CDLL(None).rand


def c_counter() -> int:
    """A number that only C code knows."""
    return int(_RAND()) % 1009


def counted_in_c(model: nn.Module, batch: Any) -> Tensor:
    return plain(model, batch) * (1 + c_counter())


def test_a_dataset_that_reads_the_clock_is_named(tmp_path: Path) -> None:
    learner = learner_on(tmp_path, DataLoader(ReadsTheClock(), SIZE, shuffle=True))
    found = learner.verify().differs
    assert found is not None and found.what == "batch[0]"
    assert "the data (a ReadsTheClock) gives another batch in the same place" in found.cause


def test_a_sampler_with_a_hidden_state_is_named(tmp_path: Path) -> None:
    learner = learner_on(tmp_path, DataLoader(DATA, SIZE, sampler=HiddenState()))
    found = learner.verify().differs
    assert found is not None and found.what == "the data's order"
    assert "a HiddenState gives another order each time" in found.cause


def test_a_module_that_is_not_deterministic_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Noise(), nn.Linear(4, 2))
    found = learner_on(tmp_path, DataLoader(DATA, SIZE), model).verify().differs
    assert found is not None and found.at.startswith("epoch 1, train, step 1")
    assert found.cause.startswith("1 (Noise) gives another output for the same input")


def test_a_value_that_only_c_code_knows_is_told_as_a_value_outside_the_state(tmp_path: Path) -> None:
    found = learner_on(tmp_path, DataLoader(DATA, SIZE), step=counted_in_c).verify().differs
    assert found is not None and found.what == "the loss"
    assert "the step uses a value that is not in the state" in found.cause


def test_a_file_that_is_written_as_a_queue_is_told_as_a_value_outside_the_state(tmp_path: Path) -> None:
    queue = tmp_path / "queue.txt"
    queue.write_text("0\n")

    def step(model: nn.Module, batch: Any) -> Tensor:
        lines = queue.read_text().splitlines()
        queue.write_text("\n".join([*lines, "1"]))
        return plain(model, batch) * len(lines)

    report = learner_on(tmp_path / "run", DataLoader(DATA, SIZE), step=step).verify()
    assert not report.exact and "the step uses a value that is not in the state" in str(report)
    assert str(report).startswith("not exact: the loss differs after epoch 1, train, step 1 of 5: ")


def test_what_a_new_process_computes_otherwise_is_found_there(tmp_path: Path) -> None:
    home = os.getpid()

    def step(model: nn.Module, batch: Any) -> Tensor:
        return plain(model, batch) * (1 if os.getpid() == home else 2)

    report = learner_on(tmp_path, DataLoader(DATA, SIZE), step=step).verify(1)
    assert report.here is None and report.elsewhere is not None and not report.exact
    assert str(report).startswith("exact here, and not from a checkpoint in a new process: the loss differs")


def test_what_cannot_be_sent_is_checked_here_alone_and_that_is_said(tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()

    def step(model: nn.Module, batch: Any) -> Tensor:
        with lock:
            return plain(model, batch)

    report = learner_on(tmp_path, DataLoader(DATA, SIZE), step=step).verify()
    assert report.exact and "a new process could not take them" in report.untried
    assert "here; a new process could not take them" in str(report)


def test_it_is_refused_where_no_step_is_left(tmp_path: Path) -> None:
    learner = learner_on(tmp_path, DataLoader(DATA, SIZE))
    learner.fit()
    with pytest.raises(StateError, match=r"verify\(\): training is finished"):
        learner.verify()
    with pytest.raises(ValueError, match="verify"):
        learner.verify(0)


# Replays, which are compared anyway ------------------------------------------------------------------


def drawing(directory: Path, *, resume: bool = False, hidden: Any = None) -> tuple[Learner, Notices]:
    """A learner whose steps count in an object that cannot be kept, if one is given."""
    torch.manual_seed(0)
    model, shown = nn.Linear(4, 2), Notices()

    def step(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        more = 0 if hidden is None else next(hidden)
        return F.cross_entropy(model(x), y) * (1 + more)

    builder = LearnerBuilder(directory).train_step(step).num_epochs(2).metrics(Loss()).renderer(shown)
    builder.with_file_checkpointer()
    if resume:
        builder.resume()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return builder.build(model, optimizer, None, DataLoader(DATA, 4, shuffle=True)), shown


def test_a_rewind_that_differs_says_so_in_the_words_of_verify(tmp_path: Path) -> None:
    learner, _ = drawing(tmp_path, hidden=(number for number in range(99)))
    learner.step(5)
    report = learner.rewind(1)
    assert not report.exact and report.differs is not None
    assert report.differs.what == "Loss" and report.differs.at.startswith("epoch 1, train, step 1")
    assert "hidden" in report.differs.cause
    assert "Loss differs after epoch 1, train, step 1: a step uses a value that is not in the state" in str(
        report
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_a_resumed_run_is_compared_with_the_log_beyond_the_checkpoint(hidden: bool, tmp_path: Path) -> None:
    first, _ = drawing(tmp_path / "first")
    first.step(2)
    first.save()
    first.step(3)
    assert first.artifacts.history  # the log holds five steps
    kept = shutil.copytree(tmp_path / "first", tmp_path / "killed")
    second, shown = drawing(kept, resume=True, hidden=(number for number in range(99)) if hidden else None)
    assert second.position.step == 2
    second.fit()
    told = [text for text in shown.texts if "what the log holds" in text]
    if hidden:
        (line,) = told
        assert "Loss differs after epoch 1, train, step 4: a step uses a value that is not in" in line
        assert "hidden" in line
    else:
        assert told == []


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("edited", [False, True])
def test_the_steps_of_what_if_are_compared_with_those_before_a_rewind(
    hidden: bool, edited: bool, tmp_path: Path
) -> None:
    learner, shown = drawing(tmp_path, hidden=(number for number in range(99)) if hidden else None)
    learner.step(4)
    learner.rewind(2)
    if edited:
        learner.optimizer.param_groups[0]["lr"] = 0.05
    learner.what_if(2, lr=0.5)
    told = [text for text in shown.texts if "before the rewind" in text]
    assert len(told) == (hidden and not edited)
    assert all("Loss differs after epoch 1, train, step 3" in text for text in told)
    learner.step(1)
    learner.what_if(1, lr=0.5)
    assert len([text for text in shown.texts if "before the rewind" in text]) == len(told)

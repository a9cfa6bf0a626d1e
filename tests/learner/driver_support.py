"""A training that can go wrong anywhere, and the same training written by hand.

Dropout, BatchNorm, Adam, shuffling, gradient accumulation and a scheduler: all that moves in a step.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from outside import Outside
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

from notebook_learner import ClassificationOutput, Learner, LearnerBuilder
from notebook_learner.data.rng import host_rng_kept
from notebook_learner.event import Event, Notice, StatusChanged
from notebook_learner.metric import Accuracy, Loss, Metric
from notebook_learner.store import RunLayout, read_log

EPOCHS = 2
TRAIN, VALID, BATCH, WINDOW = 26, 10, 4, 2  # 7 and 3 batches; a short last batch, and a short last window
A_TRAIN, A_VALID = 7, 3
AN_EPOCH = A_TRAIN + A_VALID
STEPS = EPOCHS * AN_EPOCH


class Boom(RuntimeError):
    """What users' code raises here."""


class Trouble(Outside):
    """Raises at one place of one step, until it is fixed: every time the training comes there."""

    def __init__(
        self, place: str = "", where: tuple[int, str, int] = (1, "train", 4), error: Exception | None = None
    ) -> None:
        super().__init__(None)
        self.place = place
        self.where = where
        self.error = error
        self.broken = bool(place)
        self.learner: Learner | None = None
        self.calls: dict[str, Callable[[], None]] = {}
        """What else happens at a place, at every step."""

    def fix(self) -> None:
        self.broken = False

    def at(self, place: str) -> None:
        if place in self.calls:
            self.calls[place]()
        if self.hits(place):
            raise self.error or Boom(f"in the {place}")

    def hits(self, place: str) -> bool:
        return self.broken and place == self.place and self.here()

    def here(self) -> bool:
        assert self.learner is not None
        at = self.learner._replica.loop.position
        return (at.epoch, at.split, at.step) == self.where


class RaisesInBackward(torch.autograd.Function):
    """The identity, with a backward that looks for trouble."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, trouble: Trouble) -> Tensor:
        ctx.trouble = trouble
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.trouble.at("backward")
        return grads[0], None


class Net(nn.Module):
    """A user's model."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self.trouble = trouble
        self.body = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def train_step(self, batch: Any) -> ClassificationOutput:
        x, y = batch
        self.trouble.at("forward")
        output = self(x)
        output = RaisesInBackward.apply(output, self.trouble)
        self.trouble.at("forward's end")
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    def valid_step(self, batch: Any) -> ClassificationOutput:
        x, y = batch
        output = self(x)
        self.trouble.at("valid_step")
        return ClassificationOutput(F.cross_entropy(output, y), output, y)


class HalfAdam(torch.optim.Adam):
    """An optimizer that breaks off in the middle: some parameters and moments have moved."""

    def __init__(self, parameters: Any, trouble: Trouble) -> None:
        super().__init__(parameters, lr=0.02)
        self.trouble = trouble

    def step(self, closure: Any = None) -> Any:
        if self.trouble.hits("optimizer"):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"][:2]:
                    parameter.add_(1.0)
                    for moment in self.state[parameter].values():
                        moment.add_(1.0)
            self.trouble.at("optimizer")
        return super().step(closure)


class HalfStepLR(StepLR):
    """A scheduler that breaks off after it changed the rate."""

    def __init__(self, optimizer: Any, trouble: Trouble) -> None:
        self.trouble = trouble
        super().__init__(optimizer, step_size=1, gamma=0.5)

    def step(self, epoch: Any = None) -> None:
        super().step()
        if self.last_epoch:  # torch calls it once while it is made
            self.trouble.at("scheduler")

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "trouble"}


class Counting(Metric):
    """A metric that answers from state of its own."""

    name = "Samples Seen"

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.seen = 0

    def __deepcopy__(self, memo: Any) -> Counting:
        return Counting(self.trouble)

    def update(self, item: Any) -> tuple[float, int]:
        self.seen += len(item.targets)
        self.trouble.at("metric")
        return float(self.seen), len(item.targets)

    def compute(self) -> float:
        self.trouble.at("compute")
        return float(self.seen)

    def reset(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


class Samples(Dataset[Any]):
    """Samples that know their number; one of them may be unreadable while a file says so.

    A file, because worker processes hold copies of everything else.
    """

    def __init__(self, size: int, source: int, unreadable: tuple[int, Path] | None = None) -> None:
        generator = torch.Generator().manual_seed(source)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.unreadable is not None and index == self.unreadable[0] and self.unreadable[1].exists():
            raise Boom(f"sample {index} cannot be read")
        return self.x[index], self.y[index]


class Tape:
    """A renderer that keeps what it is shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event, /) -> None:
        self.events.append(event)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    @property
    def statuses(self) -> list[tuple[str, str]]:
        """Every status with its reason."""
        return [(event.status, event.reason) for event in self.events if isinstance(event, StatusChanged)]


@dataclass
class Bench:
    """A learner on the bench, with all that a test wants to get hold of."""

    learner: Learner
    trouble: Trouble
    tape: Tape
    directory: Path


def seed_everything() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def disturb() -> None:
    """What other cells do meanwhile: draw from all generators."""
    torch.rand(3)
    np.random.rand(2)
    random.random()


def loaders(
    workers: int = 0, unreadable: tuple[int, Path] | None = None
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    train = DataLoader(Samples(TRAIN, 1, unreadable), batch_size=BATCH, shuffle=True, num_workers=workers)
    return train, DataLoader(Samples(VALID, 2), batch_size=BATCH, num_workers=workers)


def bench(
    directory: Path,
    trouble: Trouble | None = None,
    *,
    workers: int = 0,
    unreadable: tuple[int, Path] | None = None,
    data: tuple[Any, Any] | None = None,
    configure: Callable[[LearnerBuilder], Any] = lambda builder: None,
) -> Bench:
    """A fresh learner, its model and the global generators at fixed seeds."""
    trouble = trouble or Trouble()
    tape = Tape()
    seed_everything()
    model = Net(trouble)
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy(), Counting(trouble))
        .num_epochs(EPOCHS)
        .grads_accumulation(WINDOW)
        .renderer(tape)
    )
    configure(builder)
    train, valid = data or loaders(workers, unreadable)
    learner = builder.build(
        model,
        HalfAdam(model.parameters(), trouble),
        lambda optimizer: HalfStepLR(optimizer, trouble),
        train,
        valid,
    )
    trouble.learner = learner
    return Bench(learner, trouble, tape, directory)


# By hand -------------------------------------------------------------------------------------------------


@dataclass
class Moment:
    """What a step can change, as it was at a boundary."""

    tensors: dict[str, Tensor]
    moments: dict[int, dict[str, Tensor]]
    rate: float
    gradients: list[Tensor | None]
    rng: Tensor


@dataclass
class ByHand:
    """The straight run, written by hand: every boundary of it, and what it measured."""

    moments: list[Moment] = field(default_factory=list)
    """`moments[k]`: after k steps, of training and validation; the end of an epoch comes after them."""
    starts: dict[int, Moment] = field(default_factory=dict)
    """By epoch: where it begins, after the end of the one before."""
    batches: list[Any] = field(default_factory=list)
    losses: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    sizes: dict[tuple[int, str], list[int]] = field(default_factory=dict)


@lru_cache
def by_hand(workers: int = 0, epochs: int = EPOCHS) -> ByHand:
    """The straight run; the generators come out as they went in."""
    with host_rng_kept():
        return trained_by_hand(loaders(workers), epochs)


def trained_by_hand(data: tuple[DataLoader[Any], DataLoader[Any]], epochs: int) -> ByHand:
    """Written by hand."""
    seed_everything()
    calm = Trouble()
    model = Net(calm)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    train, valid = data
    run = ByHand([_moment(model, optimizer, in_window=False)])
    for epoch in range(1, epochs + 1):
        model.train()
        for step, batch in enumerate(train, start=1):
            opens = step % WINDOW == 1
            closes = step % WINDOW == 0 or step == len(train)
            if opens:
                optimizer.zero_grad()
            output = model.train_step(batch)
            output.loss.backward()
            if closes:
                for parameter in model.parameters():
                    if not opens:  # the mean over two batches of equal size; the last window has but one
                        parameter.grad /= WINDOW
                optimizer.step()
            _note(run, epoch, "train", batch, output)
            run.moments.append(_moment(model, optimizer, in_window=not closes))
        model.eval()
        with torch.no_grad():
            for batch in valid:
                output = model.valid_step(batch)
                _note(run, epoch, "valid", batch, output)
                run.moments.append(_moment(model, optimizer, in_window=False))
        scheduler.step()
        run.starts[epoch + 1] = _moment(model, optimizer, in_window=False)
    return run


def _note(run: ByHand, epoch: int, split: str, batch: Any, output: ClassificationOutput) -> None:
    run.batches.append(batch)
    run.losses.setdefault((epoch, split), []).append(output.loss.item())
    run.sizes.setdefault((epoch, split), []).append(len(output.targets))


def _moment(model: nn.Module, optimizer: torch.optim.Optimizer, *, in_window: bool) -> Moment:
    return Moment(
        tensors={name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
        moments=copy.deepcopy(optimizer.state_dict()["state"]),
        rate=optimizer.param_groups[0]["lr"],
        gradients=[p.grad.clone() if in_window and p.grad is not None else None for p in model.parameters()],
        rng=torch.get_rng_state(),
    )


def steps_taken(learner: Learner) -> int:
    """How many steps lie behind the learner's position."""
    at = learner.position
    return (at.epoch - 1) * AN_EPOCH + at.step + (A_TRAIN if at.split == "valid" else 0)


def assert_stands_like(learner: Learner, run: ByHand) -> None:
    """Wherever the learner stands, the hand-written loop stood just so."""
    at = learner._replica.loop.position
    between = at.epoch > 1 and (at.split, at.step) == ("train", 0)
    assert_equals(learner, run.starts[at.epoch] if between else run.moments[steps_taken(learner)])


def assert_equals(learner: Learner, moment: Moment) -> None:
    """Parameters, buffers, optimizer, rate, random stream, and the gradients of an open window."""
    live = learner.model.state_dict()
    for name, tensor in moment.tensors.items():
        assert torch.equal(live[name], tensor), name
    state = learner.optimizer.state_dict()["state"]
    assert state.keys() == moment.moments.keys()
    for index, values in moment.moments.items():
        for name, value in values.items():
            assert torch.equal(state[index][name], value), f"optimizer's {name} of parameter {index}"
    assert learner.optimizer.param_groups[0]["lr"] == moment.rate
    assert torch.equal(learner.capture().parts["rng"]["host"]["torch"], moment.rng), "the random stream"
    if any(gradient is not None for gradient in moment.gradients):
        for parameter, gradient in zip(learner.model.parameters(), moment.gradients, strict=True):
            assert parameter.grad is not None and gradient is not None
            assert torch.equal(parameter.grad, gradient), "the open window's gradient"


def assert_ended_like(bench: Bench, run: ByHand) -> None:
    """The end of the straight run, and its log files to the last line."""
    assert bench.learner.status == "finished"
    assert_stands_like(bench.learner, run)
    assert bench.learner.position.epoch == len(run.starts)
    assert_logged_like(bench.directory, run)


def assert_logged_like(directory: Path, run: ByHand) -> None:
    layout = RunLayout(directory)
    for (epoch, split), losses in run.losses.items():
        log = read_log(layout.metric_log(split, epoch, "Loss"))  # type: ignore[arg-type]
        sizes = run.sizes[epoch, split]
        assert log.values.tolist() == losses, f"{split} losses of epoch {epoch}"
        assert log.weights is not None and log.weights.tolist() == sizes
        total = 0.0
        for loss, size in zip(losses, sizes, strict=True):
            total += loss * size
        assert log.final == total / sum(sizes)
        seen = read_log(layout.metric_log(split, epoch, "Samples Seen"))  # type: ignore[arg-type]
        assert seen.values.tolist() == np.cumsum(sizes).tolist()
        assert seen.final == sum(sizes)
    passes = {(epoch, split) for split, epoch, _ in layout.passes()}
    assert passes == set(run.losses)


def assert_same_batch(one: Any, other: Any) -> None:
    assert len(one) == len(other) == 2
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def fit_fails(b: Bench, error: Any = Boom) -> BaseException:
    with pytest.raises(error) as caught:
        b.learner.fit()
    return caught.value


def note_of(error: BaseException) -> str:
    (note,) = error.__notes__
    return note

"""What every trainer is given: the same weights, the same batches in the same order, the same optimizer.

W1   tiny MLP, batch 32, Adam; loss and accuracy, the trainer's own display and logs, a checkpoint an epoch
W2   the same with everything off but loss and accuracy, which are read at the end of an epoch
W2b  the same without metrics
W3   small convnet on 1 x 28 x 28, batch 32; otherwise as W2
W4   char transformer, bf16 autocast, accumulation of 4 batches of 4 x 32 tokens; the loss alone
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPOCHS = 4
"""The first is left out of the figures a step, and so is what follows the start of the last one: what is
measured goes from the second epoch's first batch to the last one's, and holds all that epochs end with."""
CLASSES = 10
CHARACTERS = 64
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Kind:
    """What a workload asks of a trainer."""

    make: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Batch]
    metrics: bool = True
    shows: bool = False
    """Its display, its logs, and a checkpoint at the end of each epoch."""
    window: int = 1
    bf16: bool = False
    steps: int = 1000
    """Batches an epoch, unless asked otherwise."""


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )


def vectors(steps: int, source: torch.Generator) -> Batch:
    x = torch.randn(steps, 32, 64, generator=source)
    return x, torch.randint(0, CLASSES, (steps, 32), generator=source)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, CLASSES),
    )


def images(steps: int, source: torch.Generator) -> Batch:
    x = torch.randn(steps, 32, 1, 28, 28, generator=source)
    return x, torch.randint(0, CLASSES, (steps, 32), generator=source)


class CharTransformer(nn.Module):
    """Predicts the next character; classes are in dimension 1, where cross_entropy looks for them."""

    def __init__(self, width: int = 32, layers: int = 2, context: int = 32) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.characters(x) + self.places
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True)).movedim(-1, 1)


def texts(steps: int, source: torch.Generator) -> Batch:
    text = torch.randint(0, CHARACTERS, (steps, 4, 33), generator=source)
    return text[:, :, :-1].contiguous(), text[:, :, 1:].contiguous()


KINDS = {
    "W1": Kind(mlp, vectors, shows=True),
    "W2": Kind(mlp, vectors),
    "W2b": Kind(mlp, vectors, metrics=False),
    "W3": Kind(convnet, images, steps=150),
    "W4": Kind(CharTransformer, texts, metrics=False, window=4, bf16=True, steps=100),
}


CHUNK = 25
"""Steps of the hand-written loop and of the trainer in turn: some milliseconds, so that whatever else the
machine does meets both."""


@dataclass
class Taken:
    """CPU and wall seconds."""

    cpu: float = 0.0
    wall: float = 0.0

    def __sub__(self, other: Taken) -> Taken:
        return Taken(self.cpu - other.cpu, self.wall - other.wall)


def now() -> Taken:
    """Of the whole process: what a trainer's threads compute is its own, too."""
    return Taken(time.process_time(), time.perf_counter())


class Feed:
    """The batches in order, and the hand-written loop between them.

    Asking for a batch at the begin of a chunk trains the loop's own copy of the model on that chunk first. In
    the first epoch it follows afterwards, so that the time to the first step is the trainer's alone.
    """

    def __init__(self, batches: list[Batch], by_hand: Any) -> None:
        self.pairs = batches
        self.batches: list[Any] = list(batches)
        """In the form that the trainer wants."""
        self.by_hand = by_hand
        self.spent = Taken()
        """By the loop, of all that passed. Only this thread works for it."""
        self.marks: list[tuple[Taken, Taken]] = []
        """When an epoch was asked for: what had passed, and of it what the loop had spent."""
        self._given = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        if self._given == len(self):
            self.settle()
        elif self.marks:
            self.marks.pop()  # the library looked at the first batch, and begins again
        self._given = 0
        self.marks.append((now(), Taken(self.spent.cpu, self.spent.wall)))
        in_turn = self.by_hand.epochs > 0
        for start in range(0, len(self.batches), CHUNK):
            chunk = self.batches[start : start + CHUNK]
            if in_turn:
                self._train(self.pairs[start : start + CHUNK])
            self._given += len(chunk)
            yield from chunk

    def settle(self) -> None:
        """An epoch is over. The end of an iteration does not tell: some count batches and stop asking."""
        if not self.by_hand.epochs:
            self._train(self.pairs)
        self._train([])

    def _train(self, batches: list[Batch]) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        if batches:
            self.by_hand.train(batches)
        else:
            self.by_hand.end_epoch()
        self.spent.cpu += time.thread_time() - cpu
        self.spent.wall += time.perf_counter() - wall


@dataclass
class Work:
    """One workload, ready to be trained once."""

    kind: Kind
    model: nn.Module
    feed: Feed
    folder: Path
    """For logs and checkpoints."""
    first_step: list[Taken] = field(default_factory=list)
    """When the second forward pass began, so when the first step was over."""

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y)

    def feed_as(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        """Give the batches another form, before any time is taken of a step."""
        self.feed.batches = [form(x, y) for x, y in self.feed.pairs]

    def watch_the_first_step(self) -> None:
        calls = 0

        def before(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                self.first_step.append(now())
                handle.remove()

        handle = self.model.register_forward_pre_hook(before)

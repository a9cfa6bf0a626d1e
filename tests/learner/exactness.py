"""A training with everything in it that a state has to hold, and a comparison that forgives nothing."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, Dataset
from whole_catalogue import whole_catalogue

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, ConfusionMatrix, GradNorm, LearningRate, Loss

EPOCHS = 2
TRAIN, VALID, BATCH = 26, 10, 4  # 7 and 3 batches, both with a short last one
STEPS = EPOCHS * 10


class Noisy(Dataset[Any]):
    """Samples augmented with all three generators a user may draw from."""

    def __init__(self, size: int, source: int) -> None:
        generator = torch.Generator().manual_seed(source)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(6) + float(np.random.rand()) + random.random()
        return self.x[index] + 0.1 * noise, self.y[index]


@dataclass(frozen=True)
class Setup:
    """One way to train."""

    seed: int | None = 7
    workers: int = 0
    persistent: bool = False
    window: int = 1
    scheduler: str = "none"
    clip: bool = False
    ema: bool = False
    precision: str = "fp32"
    own_generator: bool = False
    files: bool = False
    catalogue: bool = False
    carries: bool = False
    """Whether the loss counts its calls, in a variable of its closure."""
    samples: bool = False
    """Whether samples are shown after each epoch: of a shuffled loader that draws from all generators."""

    def learner(
        self,
        directory: Path,
        checkpoint: int | str | None = None,
        given: Collection[str] = ("train", "valid"),
    ) -> Learner:
        """A fresh learner, its model and the global generators at fixed seeds, built with the data of these
        splits."""
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        )
        builder = (
            LearnerBuilder(directory)
            .metrics(Loss(), Accuracy())
            .metric_train(LearningRate())
            .metric_train_numeric(GradNorm())
            .loss(rising_loss() if self.carries else F.cross_entropy)
            .num_epochs(EPOCHS)
            .grads_accumulation(self.window)
            .early_stopping("Loss", patience=100)
            .precision(self.precision)
            .renderer("silent")
            .with_application_logger(False)
        )
        if self.seed is not None:
            builder.seed(self.seed)
        if self.clip:
            builder.clip_gradients(norm=0.5)
        if self.ema:
            builder.ema(0.9)
        if self.files:
            builder.with_file_checkpointer()
        if self.catalogue:
            known = {metric.name for metric in (Loss(), Accuracy())}
            builder.metrics(*(metric for metric in whole_catalogue() if metric.name not in known))
            builder.metric_train(ConfusionMatrix()).metric_valid(ConfusionMatrix())
        if self.samples:
            builder.samples(self.train_loader(), n=5)
        if checkpoint is not None:
            builder.checkpoint(checkpoint)
        return builder.build(
            model,
            torch.optim.Adam(model.parameters(), lr=0.02),
            self._scheduler(),
            self.train_loader() if "train" in given else None,
            self.valid_loader() if "valid" in given else None,
        )

    def _scheduler(self) -> Any:
        updates = EPOCHS * -(-7 // self.window)
        return {
            "none": None,
            "cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=updates),
            "epoch": lambda optimizer: StepLR(optimizer, 1, 0.3),
            "function": lambda step: 0.05 / (1 + step),
        }[self.scheduler]

    def train_loader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1) if self.own_generator else None
        return DataLoader(
            Noisy(TRAIN, 1),
            batch_size=BATCH,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.persistent,
            generator=generator,
        )

    def valid_loader(self) -> DataLoader[Any]:
        return DataLoader(Noisy(VALID, 2), batch_size=BATCH, num_workers=self.workers)


def rising_loss() -> Any:
    """A loss that depends on how often it was called."""
    calls = 0

    def loss(output: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(output, y) * (1 + calls / 10)

    return loss


def straight(setup: Setup, directory: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The uninterrupted run: its final state, and its log files."""
    learner = setup.learner(directory)
    learner.fit()
    return everything(learner), logs(directory)


def everything(learner: Learner) -> dict[str, Any]:
    """The whole final state as one tree."""
    state = learner.capture()
    return {"position": state.position, **state.parts}


def logs(directory: Path) -> dict[str, bytes]:
    """Every log file's bytes; of the catalogue's metric that is a text, which is read once a block, the last
    line: how many steps a block has is a matter of time."""

    def told(path: Path) -> bytes:
        found = path.read_bytes()
        return found if path.name != "Confusion_Matrix.log" else found.splitlines()[-1]

    return {str(p.relative_to(directory)): told(p) for p in sorted(directory.rglob("*.log"))}


def disturb() -> None:
    """What a person does in other cells meanwhile: draw from all generators."""
    torch.rand(3)
    np.random.rand(2)
    random.random()


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The places where two trees are not equal to the bit."""
    if type(one) is not type(other):
        yield f"{path}: {type(one).__name__} against {type(other).__name__}"
    elif isinstance(one, Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        if not same or not torch.equal(
            one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)
        ):
            yield path
    elif isinstance(one, np.ndarray):
        if one.tobytes() != other.tobytes():
            yield path
    elif isinstance(one, dict):
        if one.keys() != other.keys():
            yield f"{path}: keys {sorted(map(str, one))} against {sorted(map(str, other))}"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            yield f"{path}: {len(one)} against {len(other)} entries"
        for i, (a, b) in enumerate(zip(one, other, strict=False)):
            yield from differences(a, b, f"{path}/{i}")
    elif is_dataclass(one):
        for f in fields(one):
            yield from differences(getattr(one, f.name), getattr(other, f.name), f"{path}/{f.name}")
    elif one != other and not (one != one and other != other):
        yield f"{path}: {one!r} against {other!r}"

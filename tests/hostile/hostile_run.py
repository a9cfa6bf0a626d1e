"""A small run with everything in it that a stranger could have changed, in each file format."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.checkpoint.hdf5 import CompactRecorder, Hdf5Recorder
from notebook_learner.checkpoint.messagepack import NamedMpkGzRecorder
from notebook_learner.checkpoint.safetensors import SafetensorsRecorder
from notebook_learner.metric import Accuracy, LearningRate, Loss

RECORDERS: dict[str, Any] = {
    "h5": Hdf5Recorder,
    "gzip": lambda: Hdf5Recorder(compression="gzip"),
    "zstd": lambda: Hdf5Recorder(compression="zstd"),
    "half": CompactRecorder,
    "mpk": NamedMpkGzRecorder,
    "safetensors": SafetensorsRecorder,
}

Files = dict[str, bytes]
"""A directory: the bytes of each file by its path below."""
Samples = dict[str, Files]
"""The same run in each format."""


class Mean(NamedTuple):
    value: float
    seen: int


class Reached:
    """What the steps of the run reach: a value of each kind. A file may put anything in its place, so `turn`
    begins anew where a value is of no use."""

    def __init__(self) -> None:
        self.count, self.mean = 0, Mean(0.0, 0)
        self.queue: Any = deque(maxlen=30)
        self.kept: Any = OrderedDict(a=[1, 2], b={3})
        self.hidden: Any = torch.zeros(3)
        self.array: Any = np.zeros(4)
        self.generators: Any = [np.random.default_rng(1), random.Random(1), torch.Generator().manual_seed(1)]
        self.numbers: Any = itertools.count()
        self.critic = nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.critic.parameters())

    def turn(self) -> None:
        try:
            self._turn()
        except Exception:
            self.__init__()  # type: ignore[misc]

    def _turn(self) -> None:
        self.count += 1
        self.mean = Mean(self.mean.value + next(self.numbers), self.mean.seen + 1)
        self.queue.append((np.full(2, self.count), self.mean, self.count))
        self.kept["a"].append(self.count)
        self.kept["b"].add(self.count)
        self.hidden = self.hidden * 0.5 + 1
        self.array[self.count % 4] += 1
        numpy, python, of_torch = self.generators
        self.array[0] += numpy.normal() + python.random() + float(torch.rand((), generator=of_torch))
        with torch.enable_grad():
            self.optimizer.zero_grad()
            self.critic(torch.ones(2)).sum().backward()
            self.optimizer.step()


def learner_in(directory: Path, recorder: Any = None) -> Learner:
    """A fresh learner with every part that a state can have, always the same one."""
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    reached = Reached()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        reached.turn()
        return F.cross_entropy(output, y)

    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train(LearningRate())
        .loss(loss)
        .num_epochs(2)
        .grads_accumulation(2)
        .early_stopping("Loss", patience=100)
        .renderer("silent")
        .clip_gradients(norm=0.5)
        .ema(0.9)
        .with_file_checkpointer(*([] if recorder is None else [recorder]))
    )
    return builder.build(
        model,
        torch.optim.Adam(model.parameters(), lr=0.02),
        lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=40),
        DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True),
        DataLoader(TensorDataset(x[:8], y[:8]), batch_size=4),
    )


def run_in(directory: Path, recorder: Any) -> Files:
    """A run of one and a half epochs with two checkpoints; its files."""
    learner = learner_in(directory, recorder)
    learner.step_epoch()
    learner.step(3)
    learner.save()
    learner._replica.saving.close()
    return files_of(directory)


def files_of(directory: Path) -> Files:
    """The bytes of every file below."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def put(directory: Path, wanted: Files) -> None:
    """Make a directory hold just these files."""
    for path in sorted(directory.rglob("*"), reverse=True):
        strange = path.is_symlink() or (not path.is_dir() and str(path.relative_to(directory)) not in wanted)
        if strange:
            path.unlink(missing_ok=True)
    for name, data in wanted.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

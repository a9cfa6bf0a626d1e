"""Runs made up, in a directory: logs, application log, checkpoints, artifacts.h5."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from notebook_learner.artifacts.live_index import LiveIndex
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.event import (
    Column,
    EpochEnded,
    Evaluated,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.logger import ApplicationLogger, FileMetricLogger, History

INFOS = (
    MetricInfo("Loss", "train", higher_is_better=False),
    MetricInfo("Top-1 Accuracy", "train", unit="%", higher_is_better=True),
    MetricInfo("CPU Usage", "train"),
    MetricInfo("GPU", "train", kind="text"),
    MetricInfo("Loss", "valid", higher_is_better=False),
)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


class Run:
    """Plays events into a directory as a learner does, and keeps what was measured."""

    def __init__(self, directory, *, infos=INFOS, index=True, settings=None, seed=0):
        self.directory = directory
        self.history = History()
        self.random = np.random.default_rng(seed)
        self.folder = CheckpointFolder(directory / "checkpoint", Hdf5Recorder())
        self.logs = FileMetricLogger(directory)
        self.sinks = [self.history, self.logs, ApplicationLogger(directory / "experiment.log")]
        if index:
            live = LiveIndex(directory, self.history.snapshot, self.folder.list, lambda job: job())
            self.sinks.append(live)
        self.trained = 0
        self.sequence = 0
        opened = RunOpened(str(directory), "Net", 23, 3, infos, settings or {"seed": "42", "lr": "0.1"})
        self.emit(opened)

    def emit(self, *events):
        for event in events:
            for sink in self.sinks:
                sink.handle(event)

    def block(self, epoch, split, first, count):
        values = self.random.normal(size=count)
        columns = {"Loss": Column(values, np.full(count, 32.0))}
        texts = {}
        if split == "train":
            self.trained += count
            columns["Top-1 Accuracy"] = Column(self.random.random(count), np.full(count, 32.0))
            columns["CPU Usage"] = Column(self.random.random(count))
            texts["GPU"] = f"{self.trained} MB"
        return MetricBlock(epoch, split, first, count, self.trained, columns, texts, 0.0)

    def epoch(self, epoch, blocks=2, steps=3, loss=None):
        for split in ("train", "valid"):
            self.emit(SplitStarted(epoch, split, blocks * steps, 3))
            for number in range(blocks):
                self.emit(self.block(epoch, split, 1 + number * steps, steps))
            finals = {"Loss": 1 / epoch if loss is None else loss}
            if split == "train":
                finals["Top-1 Accuracy"] = float(epoch)
            self.emit(SplitEnded(epoch, split, blocks * steps, finals))
        self.emit(EpochEnded(epoch, 3))

    def status(self, status, epoch=3, step=0):
        self.emit(StatusChanged(status, epoch, "train", step, None))

    def save(self, label, model, *, loss=0.5, kind="epoch", extra=None, recorder=None):
        """A checkpoint as the learner writes one."""
        self.sequence += 1
        epoch = int(label.split("-")[0])
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        parts = {
            "model": {"tensors": {k: v.detach() for k, v in state.items()}, "extra": extra or {}},
            "optim": {"groups": [{"lr": 0.1, "betas": (0.9, 0.999)}], "moment": torch.arange(5.0)},
            "scheduler": {"last_epoch": epoch},
        }
        about = {
            "epoch": epoch,
            "split": "train",
            "step": 6,
            "iteration": self.trained,
            "kind": kind,
            "run_id": "r",
            "sequence": self.sequence,
            "metrics": {"valid": {"Loss": loss}},
            "run": {},
            "best": {"metric": "Loss", "split": "valid", "mode": "min"},
            "parts": {"rng": torch.arange(8, dtype=torch.uint8)},
        }
        folder = self.folder if recorder is None else CheckpointFolder(self.folder.path, recorder)
        return folder.commit(label, parts, about)


def finished(directory, **options):
    """Two epochs with two checkpoints, of which the first is the better one; gives the run and models."""
    run = Run(directory, **options)
    models = {}
    for epoch in (1, 2):
        run.epoch(epoch)
        models[epoch] = net(epoch)
        run.save(str(epoch), models[epoch], loss=0.1 * epoch)
    run.status("finished", 3)
    return run, models


def replaced(block, **columns):
    return replace(block, columns={**block.columns, **columns})


def without(path):
    with suppress(FileNotFoundError):
        path.unlink()


def evaluated(run, name, steps=2, **finals):
    """A set measured with the weights of the end of epoch 1, as a learner tells of it."""
    values = run.random.normal(size=steps)
    columns = {metric: Column(values, np.full(steps, 4.0)) for metric in finals}
    block = MetricBlock(1, "valid", 1, steps, run.trained, columns, {}, 0.1)
    infos = tuple(info for info in INFOS if info.split == "valid" and info.name in finals)
    run.emit(Evaluated(name, 1, "valid", 6, SplitRecord(1, "valid", (block,), finals), infos))
    return values

"""The events of a small run, as the loop would send them."""

from __future__ import annotations

import numpy as np

from notebook_learner.event import (
    Column,
    EpochEnded,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    StatusChanged,
)

METRICS = (
    MetricInfo("Loss", "train", "", False),
    MetricInfo("Loss", "valid", "", False),
    MetricInfo("Accuracy", "train", "%", True),
    MetricInfo("Accuracy", "valid", "%", True),
    MetricInfo("Learning Rate", "train", "", None, plotted=False),
    MetricInfo("Cuda", "train", kind="text", plotted=False),
)
STEPS = {"train": 40, "valid": 10}


def opened(epochs=3, metrics=METRICS, model="Net", directory="runs/digits", settings=None):
    """A learner was built."""
    return RunOpened(directory, model, 1234567, epochs, metrics, settings or {"optimizer": "Adam"})


def status(name, epoch=1, split="train", step=0, total=40, reason=""):
    """The learner changed its status."""
    return StatusChanged(name, epoch, split, step, total, reason)


def block(epoch, split="train", first=1, count=10, loss=None, seconds=0.1, names=("Loss", "Accuracy")):
    """Some steps. The loss falls by epoch, and is the same within one."""
    loss = (1 / epoch if split == "train" else 1.5 / epoch) if loss is None else loss
    level = {"Loss": loss, "Accuracy": 100 - 10 * loss, "Learning Rate": 1e-3}
    weights = np.full(count, 32.0)
    columns = {name: Column(np.full(count, level.get(name, loss)), weights) for name in names}
    if split == "train":
        columns["Learning Rate"] = Column(np.full(count, 1e-3))
    total = STEPS["train"]
    iteration = (epoch - 1) * total + (first + count - 1 if split == "train" else total)
    texts = {"Cuda": "3.2 GB, 71 %"} if split == "train" else {}
    return MetricBlock(epoch, split, first, count, iteration, columns, texts, seconds)


def finals(epoch, split):
    """What `block` averages to."""
    loss = 1 / epoch if split == "train" else 1.5 / epoch
    return {"Loss": loss, "Accuracy": 100 - 10 * loss}


def one_pass(epoch, split, epochs=3):
    """One split of one epoch."""
    total = STEPS[split]
    blocks = [block(epoch, split, first) for first in range(1, total, 10)]
    return [
        SplitStarted(epoch, split, total, epochs),
        *blocks,
        SplitEnded(epoch, split, total, finals(epoch, split)),
    ]


def one_epoch(epoch, epochs=3):
    """Training and validation."""
    return [*one_pass(epoch, "train", epochs), *one_pass(epoch, "valid", epochs), EpochEnded(epoch, epochs)]


def whole_run(epochs=3, **opening):
    """From the builder to the end."""
    events = [opened(epochs, **opening), status("running")]
    for epoch in range(1, epochs + 1):
        events += one_epoch(epoch, epochs)
    return [*events, status("finished", epochs, "valid", 10, 10, "finished")]


def record_of(epoch, split="train", steps=40, ended=True):
    """A pass as `Rewound` tells it."""
    blocks = tuple(block(epoch, split, first) for first in range(1, steps, 10))
    return SplitRecord(epoch, split, blocks, finals(epoch, split) if ended else None)


def play(renderer, events):
    """Hand the events over."""
    for event in events:
        renderer.handle(event)

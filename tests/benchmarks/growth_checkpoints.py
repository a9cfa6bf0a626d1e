"""Curves of what checkpoints cost: as epochs go by, and as checkpoints pile up."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growth import Row, cpu, curve


def tiny(directory: Path, *, keep_all: bool = False, resume: bool = False) -> Any:
    """A learner of 27 weights and 10 steps an epoch, so that what is measured is not the training."""
    import torch
    from torch import nn

    from notebook_learner import LearnerBuilder
    from notebook_learner.checkpoint import KeepEvery
    from notebook_learner.metric import Accuracy, Loss

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    batch = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    builder = LearnerBuilder(directory).loss(nn.functional.cross_entropy).metrics(Loss(), Accuracy())
    builder.num_epochs(1).renderer("silent").with_file_checkpointer()
    if keep_all:
        builder.with_checkpointing_strategy(KeepEvery(1))
    if resume:
        builder.resume()
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.01), None, [batch] * 10)


def settle(learner: Any) -> None:
    """Wait for all that is being written."""
    assert learner.artifacts is not None


@curve("epochs", "epoch", "ms CPU an epoch", "state file, kB")
def epochs(quick: bool) -> Iterator[Row]:
    """An epoch of 10 steps with its checkpoint (the default strategy keeps one or two), files included; the
    mean of the epochs just before."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        learner = tiny(run)
        learner.fit()
        for epoch in (6, 12) if quick else (10, 30, 100, 300, 1000, 3000):
            measured = min(epoch // 2, 100)
            learner.num_epochs = epoch - measured
            learner.fit()
            learner.num_epochs = epoch
            with cpu() as took:
                learner.fit()
                settle(learner)
            states = (run / "checkpoint").glob("state-*")
            yield epoch, took.ms / measured, max(file.stat().st_size for file in states) / 1e3


@curve(
    "looking", "checkpoints", "list, first", "list again", "restore", "build, resume", "first save", "save"
)
def looking(quick: bool) -> Iterator[Row]:
    """What many checkpoints cost, ms CPU: listing them in a folder that was never looked at and once more,
    going back to the newest, building with `.resume()`, and a save then."""
    from notebook_learner.checkpoint.folder import CheckpointFolder

    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        learner = tiny(run, keep_all=True)
        learner.fit()
        for count in (3, 6) if quick else (10, 50, 100, 200, 400):
            learner.num_epochs = count
            learner.fit()
            settle(learner)
            del learner
            gc.collect()
            folder = CheckpointFolder(run / "checkpoint")
            with cpu() as first:
                folder.list()
            with cpu() as again:
                folder.list()
            with cpu() as built:
                learner = tiny(run, keep_all=True, resume=True)
            learner.num_epochs = count + 1
            learner.step()
            with cpu() as saved:
                learner.save()
            learner.step()
            with cpu() as later:
                learner.save()
            with cpu() as restored:
                learner.restore(count)
            settle(learner)
            yield count, first.ms, again.ms, restored.ms, built.ms, saved.ms, later.ms


@curve("resumed", "epochs", "fsyncs, first save", "fsyncs, second")
def resumed(quick: bool) -> Iterator[Row]:
    """How often the first and the second save after a resume wait for the disk."""
    from notebook_learner.store import files

    counted, real = [0], files.sync

    def sync(descriptor: int) -> None:
        counted[0] += 1
        real(descriptor)

    files.sync = sync
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        learner = tiny(run)
        for epoch in (3, 6) if quick else (10, 100, 1000):
            learner.num_epochs = epoch
            learner.fit()
            settle(learner)
            del learner
            gc.collect()
            learner = tiny(run, resume=True)
            learner.num_epochs = epoch + 1
            saves = []
            for _ in range(2):
                learner.step()
                counted[0] = 0
                learner.save()
                saves.append(counted[0])
            settle(learner)
            yield epoch, *saves

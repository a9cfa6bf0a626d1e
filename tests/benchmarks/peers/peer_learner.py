"""This package."""

from __future__ import annotations

import torch
from peer_work import EPOCHS, Work


def train(work: Work, optimizer: torch.optim.Optimizer | None = None) -> None:
    from notebook_learner import LearnerBuilder
    from notebook_learner.logger import InMemoryMetricLogger
    from notebook_learner.metric import Accuracy, Loss

    kind = work.kind
    builder = LearnerBuilder(work.folder / "run").loss(work.loss).num_epochs(EPOCHS)
    builder.metrics(*([Loss(), Accuracy()] if kind.metrics else []))
    if kind.shows:
        builder.with_file_checkpointer()
    else:
        builder.renderer("silent").with_application_logger(False).metric_logger(InMemoryMetricLogger())
    if kind.bf16:
        builder.precision("bf16")
    builder.grads_accumulation(kind.window)
    builder.build(work.model, optimizer or work.optimizer()).fit(work.feed)


def fused(work: Work) -> None:
    """With Adam in one kernel: other last bits."""
    train(work, torch.optim.Adam(work.model.parameters(), lr=1e-3, fused=True))

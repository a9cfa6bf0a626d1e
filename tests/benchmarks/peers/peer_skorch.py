"""skorch."""

from __future__ import annotations

from typing import Any

import torch
from peer_work import EPOCHS, Work
from torch.utils.data import TensorDataset


def train(work: Work) -> None:
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Checkpoint, EpochScoring

    kind = work.kind
    callbacks: list[Any] = []
    if kind.metrics:
        scored = EpochScoring("accuracy", name="train_acc", lower_is_better=False, on_train=True)
        callbacks.append(("train_acc", scored))
    if kind.shows:
        callbacks.append(("checkpoint", Checkpoint(monitor=None, dirname=str(work.folder))))
    net = NeuralNetClassifier(
        work.model,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        max_epochs=EPOCHS,
        iterator_train=lambda dataset, **_: work.feed,
        train_split=None,
        callbacks=callbacks,
        callbacks__valid_acc=None,
        callbacks__valid_loss=None,
        classes=list(range(10)),
    )
    if not kind.shows:
        net.set_params(verbose=0, callbacks__print_log=None)
    if not kind.metrics:
        net.set_params(callbacks__train_loss=None)
    net.initialize()
    x, y = (torch.cat(parts) for parts in zip(*work.feed.pairs, strict=True))
    net.partial_fit(TensorDataset(x, y), y.numpy())  # fit would initialize anew: other weights
    assert net.module_ is work.model or _adopted(work, net.module_)


def _adopted(work: Work, trained: torch.nn.Module) -> bool:
    """It trains a copy of the module it was given."""
    work.model.load_state_dict(trained.state_dict())
    return True

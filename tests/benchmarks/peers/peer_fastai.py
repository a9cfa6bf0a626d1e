"""fastai."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from peer_work import EPOCHS, Work


def train(work: Work) -> None:
    from fastai.callback.progress import CSVLogger
    from fastai.callback.tracker import SaveModelCallback
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.metrics import accuracy
    from fastai.optimizer import OptimWrapper

    kind = work.kind
    callbacks: list[Any] = []
    if kind.shows:
        callbacks = [SaveModelCallback(every_epoch=True, with_opt=True), CSVLogger(work.folder / "log.csv")]
    learner = Learner(
        DataLoaders(work.feed, []),
        work.model,
        loss_func=work.loss,
        opt_func=partial(OptimWrapper, opt=torch.optim.Adam),
        lr=1e-3,
        metrics=[accuracy] if kind.metrics else None,
        wd=0.0,
        cbs=callbacks,
        path=work.folder,
        train_bn=True,
    )
    learner.recorder.train_metrics = kind.metrics  # without it metrics are for validation alone
    with ExitStack() as quiet:
        if not kind.shows:
            quiet.enter_context(learner.no_bar())
            quiet.enter_context(learner.no_logging())
        learner.fit(EPOCHS, 1e-3, wd=0.0)

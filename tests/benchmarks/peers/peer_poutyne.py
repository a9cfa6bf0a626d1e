"""Poutyne."""

from __future__ import annotations

from typing import Any

from peer_work import EPOCHS, Work


def train(work: Work) -> None:
    from poutyne import Model
    from poutyne.framework.callbacks import CSVLogger, ModelCheckpoint

    kind = work.kind
    callbacks: list[Any] = []
    if kind.shows:
        callbacks.append(CSVLogger(str(work.folder / "log.csv")))
        callbacks.append(ModelCheckpoint(str(work.folder / "checkpoint-{epoch}.ckpt")))
    model = Model(
        work.model, work.optimizer(), work.loss, batch_metrics=["accuracy"] if kind.metrics else None
    )
    model.fit_generator(
        work.feed, epochs=EPOCHS, verbose=kind.shows, callbacks=callbacks, steps_per_epoch=len(work.feed)
    )

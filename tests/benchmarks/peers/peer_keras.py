"""Keras on torch, with the torch module in its wrapper: the layers work the same, the optimizer not."""

from __future__ import annotations

import os
from typing import Any

from peer_work import EPOCHS, Work
from torch.utils.data import DataLoader


class Feed(DataLoader[Any]):
    """The batches as a list is walked, in a class that Keras knows."""

    def __init__(self, work: Work) -> None:
        super().__init__(work.feed.batches, batch_size=None)  # type: ignore[arg-type]  # a list is enough
        self.work = work

    def __iter__(self) -> Any:
        return iter(self.work.feed)


def train(work: Work) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from keras.layers import TorchModuleWrapper

    kind = work.kind
    model = keras.Sequential(
        [keras.Input(tuple(work.feed.batches[0][0].shape[1:])), TorchModuleWrapper(work.model)]
    )
    model.compile(
        # torch's epsilon; where it stands in the formula differs.
        optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"] if kind.metrics else None,
    )
    callbacks: list[Any] = []
    if kind.shows:
        callbacks.append(keras.callbacks.CSVLogger(str(work.folder / "log.csv")))
        path = str(work.folder / "checkpoint-{epoch}.weights.h5")
        callbacks.append(keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    model.fit(Feed(work), epochs=EPOCHS, shuffle=False, verbose=1 if kind.shows else 0, callbacks=callbacks)

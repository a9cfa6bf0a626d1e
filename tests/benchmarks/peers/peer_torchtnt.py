"""torchtnt."""

from __future__ import annotations

from typing import Any

import torch
from peer_hand import Tally
from peer_work import EPOCHS, Work


def train(work: Work) -> None:
    import torchtnt.framework as tnt
    from torchtnt.framework.callbacks import DistributedCheckpointSaver, TQDMProgressBar

    kind = work.kind

    class Unit(tnt.AutoUnit[Any]):
        def __init__(self) -> None:
            super().__init__(
                module=work.model,
                device=torch.device("cpu"),
                precision="bf16" if kind.bf16 else None,
                gradient_accumulation_steps=kind.window,
            )
            self.tally = Tally(kind, work.folder)

        def compute_loss(self, state: Any, data: Any) -> Any:
            x, y = data
            output = self.module(x)
            return work.loss(output, y), output

        def configure_optimizers_and_lr_scheduler(self, module: torch.nn.Module) -> Any:
            return work.optimizer(), None

        def on_train_step_end(self, state: Any, data: Any, step: int, results: Any) -> None:
            self.tally.add(results.loss, results.outputs, data[1])

        def on_train_epoch_end(self, state: Any) -> None:
            super().on_train_epoch_end(state)
            self.tally.end_epoch()

    callbacks: list[Any] = []
    if kind.shows:
        saver = DistributedCheckpointSaver(str(work.folder / "checkpoints"), save_every_n_epochs=1)
        callbacks = [TQDMProgressBar(), saver]
    tnt.train(Unit(), work.feed, max_epochs=EPOCHS, callbacks=callbacks)

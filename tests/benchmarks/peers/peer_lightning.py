"""Lightning."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from peer_work import CLASSES, EPOCHS, Work


def train(work: Work) -> None:
    import lightning
    from torchmetrics.classification import MulticlassAccuracy

    kind = work.kind
    if not kind.shows:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = work.model
            self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

        def training_step(self, batch: Any, number: int) -> Any:
            x, y = batch
            output = self.net(x)
            loss = work.loss(output, y)
            if kind.metrics:
                self.accuracy(output, y)
                shown = {"on_step": kind.shows, "on_epoch": True, "prog_bar": kind.shows}
                self.log("loss", loss, batch_size=len(y), **shown)
                self.log("accuracy", self.accuracy, batch_size=len(y), **shown)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return work.optimizer()

    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        precision="bf16-mixed" if kind.bf16 else "32-true",
        accumulate_grad_batches=kind.window,
        default_root_dir=work.folder,
        logger=None if kind.shows else False,
        enable_checkpointing=kind.shows,
        enable_progress_bar=kind.shows,
        enable_model_summary=kind.shows,
    )
    trainer.fit(Module(), work.feed)

"""PyTorch Ignite."""

from __future__ import annotations

from typing import Any

import torch
from peer_work import EPOCHS, Work


def train(work: Work) -> None:
    from ignite.engine import Engine, Events, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    kind, optimizer = work.kind, work.optimizer()
    if kind.bf16:
        engine = Engine(_in_bf16(work, optimizer))  # its own factory knows autocast on a GPU only
    else:
        engine = create_supervised_trainer(
            work.model,
            optimizer,
            work.loss,
            gradient_accumulation_steps=kind.window,
            # The default reads the loss at every step.
            output_transform=lambda x, y, y_pred, loss: (y_pred.detach(), y) if kind.metrics else None,
        )
    if kind.metrics:
        Loss(work.loss).attach(engine, "loss")
        Accuracy().attach(engine, "accuracy")
    if kind.shows:
        from ignite.handlers import DiskSaver, ProgressBar
        from ignite.handlers.checkpoint import Checkpoint

        ProgressBar().attach(engine)
        state = {"model": work.model, "optimizer": optimizer, "trainer": engine}
        saver = Checkpoint(state, DiskSaver(str(work.folder / "checkpoints"), create_dir=True), n_saved=2)
        engine.add_event_handler(Events.EPOCH_COMPLETED, saver)
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda e: print(e.state.epoch, e.state.metrics))
    engine.run(work.feed, max_epochs=EPOCHS)


def _in_bf16(work: Work, optimizer: torch.optim.Optimizer) -> Any:
    autocast, window = torch.autocast("cpu", torch.bfloat16), work.kind.window

    def step(engine: Any, batch: Any) -> None:
        if (engine.state.iteration - 1) % window == 0:
            optimizer.zero_grad()
        work.model.train()
        x, y = batch
        with autocast:
            loss = work.loss(work.model(x), y)
        (loss / window).backward()
        if engine.state.iteration % window == 0:
            optimizer.step()

    return step

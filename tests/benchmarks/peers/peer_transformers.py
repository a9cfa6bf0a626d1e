"""Transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from peer_hand import Tally
from peer_work import EPOCHS, Batch, Work
from torch import Tensor, nn


class Model(nn.Module):
    """A model of the form that the Trainer asks for: it computes its own loss."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.inner, self.loss = work.model, work.loss

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.inner(x)
        return {"loss": self.loss(logits, labels), "logits": logits}


def train(work: Work) -> None:
    import transformers

    kind = work.kind
    work.feed_as(lambda x, y: {"x": x, "labels": y})
    tally = Tally(kind, work.folder)

    class Trainer(transformers.Trainer):
        """Walks our batches as they are, and counts accuracy, which it does in evaluation only."""

        def get_train_dataloader(self) -> Any:
            return work.feed

        def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
            if not kind.metrics:
                return super().compute_loss(model, inputs, **more)
            loss, outputs = super().compute_loss(
                model,
                inputs,
                return_outputs=True,
                **{key: value for key, value in more.items() if key != "return_outputs"},
            )
            tally.add(loss, outputs["logits"], inputs["labels"])
            return loss

    class End(transformers.TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            tally.end_epoch()

    arguments = transformers.TrainingArguments(
        str(work.folder / "run"),
        num_train_epochs=EPOCHS,
        use_cpu=True,
        bf16=kind.bf16,
        gradient_accumulation_steps=kind.window,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        report_to="none",
        save_strategy="epoch" if kind.shows else "no",
        logging_strategy="steps" if kind.shows else "no",
        disable_tqdm=not kind.shows,
        remove_unused_columns=False,
    )
    optimizer = work.optimizer()
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = Trainer(
        Model(work), arguments, train_dataset=_Rows(work.feed.batches), optimizers=(optimizer, constant)
    )
    trainer.add_callback(End())
    trainer.train()


class _Rows:
    """Only its length is asked for."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return sum(len(batch["x"]) for batch in self.batches)  # type: ignore[call-overload]  # dicts by now

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

"""Models that were written for Lightning, and Lightning's own trainer beside ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, as they load
    import lightning
    import torchmetrics

EPOCHS = 3


class Plain(nn.Module):
    """What a module has that has never heard of Lightning."""

    automatic_optimization = True


Base = type[Any]
both = pytest.mark.parametrize("base", [lightning.LightningModule, Plain], ids=["lightning", "duck"])


def classifier(base: Base, **own: Any) -> Any:
    class Classifier(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
            self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
            self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")
            self.seen: list[tuple[int, int, int]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            output = self.net(x)
            loss = F.cross_entropy(output, y)
            self.accuracy(output, y)
            self.log("train/loss", loss, prog_bar=True)
            self.log("train_acc", self.accuracy, on_step=False, on_epoch=True)
            self.seen.append((self.current_epoch, batch_idx, self.global_step))
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            x, y = batch
            output = self.net(x)
            self.f1(output, y)
            self.log_dict({"val_loss": F.cross_entropy(output, y), "val_f1": self.f1})

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = ReduceLROnPlateau(optimizer, patience=0, factor=0.1, threshold=1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}

    for name, value in own.items():
        setattr(Classifier, name, value)
    torch.manual_seed(0)
    return Classifier()


def gan(base: Base) -> Any:
    class Gan(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.1))

        def training_step(self, batch: Any, batch_idx: int) -> None:
            (real,) = batch
            first, second = self.optimizers()
            fake = self.generator(torch.randn(len(real), 2))
            self.toggle_optimizer(first)
            loss = -self.critic(fake).mean()
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            self.untoggle_optimizer(first)
            self.between()
            with second.toggle_model():
                other = self.critic(fake.detach()).mean() - self.critic(real).mean()
                second.zero_grad()
                self.manual_backward(other)
                self.clip_gradients(second, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
                second.step()
            self.lr_schedulers().step()
            self.log_dict({"g": loss, "d": other})

        def between(self) -> None:
            """A place to fail at."""

        def configure_optimizers(self) -> Any:
            first = torch.optim.Adam(self.generator.parameters(), lr=0.01)
            second = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.9)
            return [first, second], [StepLR(second, 4, 0.5)]

    torch.manual_seed(0)
    return Gan()


def rows(labelled: bool = True) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 4, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (50,), generator=generator)) if labelled else TensorDataset(x)


def data(labelled: bool = True) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    train = DataLoader(rows(labelled), batch_size=8, shuffle=True)
    return train, DataLoader(rows(), batch_size=16) if labelled else None


def bits(model: Any) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@contextmanager
def their_trainer() -> Iterator[Any]:
    """Lightning's trainer, without what it would write; its own warnings do not count here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )


def by_lightning(model: Any, labelled: bool = True) -> Any:
    """Train it with Lightning itself, and return its trainer."""
    torch.manual_seed(5)
    with their_trainer() as trainer:
        train, valid = data(labelled)
        trainer.fit(model, train, valid)
    return trainer


def learner_of(model: Any, directory: Path, labelled: bool = True, *, resume: bool = False) -> Any:
    train, valid = data(labelled)
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).renderer("silent").with_file_checkpointer()
    if resume:
        builder = builder.resume()
    torch.manual_seed(5)
    return builder.build(model, train=train, valid=valid)

"""Values that steps log by name, measured by two ranks: those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from fleet_support import CLASSES, TWO, Net, samples
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from notebook_learner import LearnerBuilder


class Lit(nn.Module):
    """A model that was written for Lightning."""

    automatic_optimization = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = Net()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=CLASSES, average="macro")
        self.auroc = torchmetrics.AUROC(task="multiclass", num_classes=CLASSES)

    def training_step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        output = self.net(x)
        self.accuracy(output.detach(), y)
        self.log("train_acc", self.accuracy)
        self.log("ranks", float(self.trainer.world_size))
        self.log("firsts", float(self.trainer.is_global_zero and self.trainer.global_rank == 0))
        return F.cross_entropy(output, y)

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        x, y = batch
        output = self.net(x)
        self.f1(output, y)
        self.auroc.update(output, y)
        self.log_dict({"val_f1": self.f1, "val_auroc": self.auroc, "val_loss": F.cross_entropy(output, y)})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)  # the same weights, so that the measuring differs


OTHER = DataLoader(samples(37), 16)


def measured(directory: Path, devices: list[str] | None, act: Any = lambda learner: None) -> dict[str, float]:
    builder = LearnerBuilder(directory).num_epochs(2).renderer("silent").seed(3)
    if devices is not None:
        builder.devices(devices)
    learner = builder.build(Lit(), train=DataLoader(samples(50), 16, shuffle=True), valid=OTHER)
    act(learner)
    learner.fit()
    found = {f"set {name}": value for name, value in learner.evaluate(OTHER).items()}
    for split in ("train", "valid"):
        for name in learner.history.metrics(split):
            for epoch in (1, 2):
                value = learner.history.final(name, split, epoch)
                assert value is not None
                found[f"{split} {name} {epoch}"] = value
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return measured(tmp_path_factory.mktemp("alone"), None)


def straight(learner: Any) -> None:
    pass


def rewound(learner: Any) -> None:
    learner.step(6)
    learner.rewind(3)


def evaluated(learner: Any) -> None:
    learner.step(6)  # in the validation
    learner.evaluate(OTHER)


@pytest.mark.parametrize("act", [straight, rewound, evaluated], ids=lambda act: act.__name__)
def test_the_values_are_those_of_one_device(act: Any, alone: dict[str, float], tmp_path: Path) -> None:
    together = measured(tmp_path, TWO, act)
    assert {"valid val_auroc 2", "set val_auroc", "train train_acc 1"} <= set(together)
    facts = {name: together.pop(name) for name in list(together) if name.split()[1] in ("ranks", "firsts")}
    assert {name: alone[name] for name in facts} == dict.fromkeys(facts, 1.0)
    assert facts["train ranks 1"] == facts["train ranks 2"] == 2.0
    assert 0.4 < facts["train firsts 1"] < 0.6, "about half of the samples are rank 0's"
    assert together == pytest.approx({name: alone[name] for name in alone if name not in facts}, rel=2e-6)

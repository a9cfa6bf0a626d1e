"""`.graph()` with CUDA graphs: the bits of steps taken one by one, also around every kind of stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, batches, no_waits, on_device
from torch import nn

from notebook_learner import ClassificationOutput, Learner, LearnerBuilder
from notebook_learner.event import Notice
from notebook_learner.metric import Accuracy, GradNorm, LearningRate, Loss
from notebook_learner.step.graph_step import WARM_UP, RecordedStep, make_recordable


def build(directory: Path, *, graph: bool, optimizer: Any, precision: str = "fp32", **more: Any) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))

    def made(parameters: Any) -> Any:
        made = optimizer(parameters)
        make_recordable(made)  # the same arithmetic in both
        return made

    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train(LearningRate())
        .metric_train_numeric(GradNorm())
        .devices([DEVICE])
        .num_epochs(2)
        .clip_gradients(norm=1.0)
        .precision(precision)
        .renderer("silent")
        .seed(7)
    )
    if graph:
        builder.graph()
    if "train_step" not in more:
        builder.loss(F.cross_entropy)
    for name, value in more.items():
        getattr(builder, name)(*value)
    return builder.build(model, made, lambda step: 0.01 / (1 + step / 20), on_device(batches(40)))


OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "SGD, fused": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_played_steps_end_with_the_bits_of_steps_one_by_one(
    optimizer: str, precision: str, deterministic: None, tmp_path: Path
) -> None:
    make = OPTIMIZERS[optimizer]
    plain = build(tmp_path / "a", graph=False, optimizer=make, precision=precision)
    plain.fit()
    learner = build(tmp_path / "b", graph=True, optimizer=make, precision=precision)
    learner.fit()
    step = learner._replica.loop.passes["train"].step
    assert isinstance(step, RecordedStep) and step.problem == "" and len(step._recordings) == 1
    assert all(map(torch.equal, plain.model.state_dict().values(), learner.model.state_dict().values()))
    for name in ("Loss", "Accuracy", "Gradient Norm", "Learning Rate"):
        assert list(plain.history["train", name]) == list(learner.history["train", name])


def test_pausing_rewinding_and_restoring_change_nothing(deterministic: None, tmp_path: Path) -> None:
    make = OPTIMIZERS["Adam"]
    plain = build(tmp_path / "a", graph=False, optimizer=make, ema=(0.9,))
    plain.fit()
    learner = build(tmp_path / "b", graph=True, optimizer=make, ema=(0.9,))
    learner.step(12)
    state = learner.capture()
    learner.step(15)
    assert learner.rewind(9).exact
    learner.inspect()
    learner.what_if(steps=8, lr=0.5)
    learner.step(WARM_UP + 5)
    learner.restore(state)
    learner.fit()
    assert all(map(torch.equal, plain.model.state_dict().values(), learner.model.state_dict().values()))


def test_a_step_that_reads_from_the_device_is_told_of_and_taken_one_by_one(
    deterministic: None, tmp_path: Path
) -> None:
    told: list[str] = []

    class Told:
        def handle(self, event: Any) -> None:
            if isinstance(event, Notice) and event.level == "warning":
                told.append(event.text)

    def reading(model: nn.Module, batch: Any) -> Any:
        x, y = batch
        output = model(x)
        loss = F.cross_entropy(output, y)
        assert loss.item() > 0
        return ClassificationOutput(loss, output, y)

    make = OPTIMIZERS["Adam"]
    plain = build(tmp_path / "plain", graph=False, optimizer=make, train_step=(reading,))
    plain.fit()
    learner = build(
        tmp_path / "recorded", graph=True, optimizer=make, train_step=(reading,), metric_logger=(Told(),)
    )
    learner.fit()
    (text,) = told
    assert text.startswith("graph(): steps are taken one by one, because a step cannot be recorded")
    assert learner.status == "finished" and len(learner.history["train", "Loss"]) == 2 * 40
    # Its dropout draws what the other's draws: the recording that failed has moved no generator.
    assert all(map(torch.equal, plain.model.state_dict().values(), learner.model.state_dict().values()))


def test_a_hundred_played_steps_never_wait_for_the_device(tmp_path: Path) -> None:
    learner = build(tmp_path, graph=True, optimizer=OPTIMIZERS["Adam"], num_epochs=(10,))
    learner.step(60)
    loop = learner._replica.loop
    loop.look_around()
    loop._open_split()
    loop._steps(WARM_UP + 1)
    with no_waits():
        loop._steps(10)
    loop.flush()

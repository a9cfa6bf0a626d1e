"""A step or a loss that is another one than the checkpoint's is told by name; in one process it goes back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.event import Notice

PAIRS = [
    (x, x.sum(1, keepdim=True))
    for x in (torch.randn(8, 4, generator=torch.Generator().manual_seed(n)) for n in range(5))
]


class Shown:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice) and event.level == "warning":
            self.warnings.append(event.text)


def learner_in(
    directory: Path, *, loss: Any = None, step: Any = None, model: Any = None, resume: bool = False
) -> tuple[Any, Shown]:
    shown = Shown()
    torch.manual_seed(1)
    model = nn.Linear(4, 1) if model is None else model
    builder = LearnerBuilder(directory).num_epochs(2).renderer(shown).metrics().with_file_checkpointer()
    if loss is not None:
        builder.loss(loss)
    if step is not None:
        builder.train_step(step)
    if resume:
        builder.resume()
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.05), None, PAIRS), shown


def saved(directory: Path, **given: Any) -> None:
    first, _ = learner_in(directory, **given)
    first.step(3)
    first.save()


def step_of(text: str) -> Callable[..., Any]:
    """The function of a cell with this text."""
    names: dict[str, Any] = {"F": F}
    exec(text, names)
    step: Callable[..., Any] = names["step"]
    return step


STEP = "def step(model, batch):\n    return F.mse_loss(model(batch[0]), batch[1])"


def test_a_loss_that_was_assigned_is_asked_for_by_the_builder_that_resumes(tmp_path: Path) -> None:
    first, _ = learner_in(tmp_path, loss=F.mse_loss)
    first.step(2)
    first.loss = F.l1_loss
    first.step(1)
    first.save()
    _, shown = learner_in(tmp_path, loss=F.mse_loss, resume=True)
    assert shown.warnings == [
        "loss: the checkpoint was trained with l1_loss, this learner has mse_loss: kept mse_loss"
    ]
    _, shown = learner_in(tmp_path, loss=F.l1_loss, resume=True)
    assert shown.warnings == []


def test_going_back_by_a_file_over_another_loss_brings_the_former_one_back(tmp_path: Path) -> None:
    straight, _ = learner_in(tmp_path / "straight", loss=F.mse_loss)
    straight.fit()
    learner, shown = learner_in(tmp_path / "run", loss=F.mse_loss)
    learner.step(2)
    label = learner.save()
    learner.step(1)
    learner.loss = F.l1_loss
    learner.step(1)
    learner.restore(label)
    learner.fit()
    assert shown.warnings == []
    for one, other in zip(learner.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_edited_step_of_the_same_name_is_told(tmp_path: Path) -> None:
    saved(tmp_path, step=step_of(STEP))
    _, shown = learner_in(tmp_path, step=step_of(STEP.replace("mse", "l1")), resume=True)
    assert shown.warnings == [
        "train_step: step is not the code that the checkpoint was trained with: kept the code of now"
    ]


@pytest.mark.parametrize(
    "text",
    [STEP, f"\n\n# moved\n{STEP}  # and commented", STEP.replace("    return", "        return")],
    ids=["the same", "moved", "indented"],
)
def test_the_same_step_written_elsewhere_is_the_same(text: str, tmp_path: Path) -> None:
    saved(tmp_path, step=step_of(STEP))
    _, shown = learner_in(tmp_path, step=step_of(text), resume=True)
    assert shown.warnings == []


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (nn.SmoothL1Loss(), nn.SmoothL1Loss(beta=2.0), "loss: SmoothL1Loss is not the code"),
        (
            partial(F.huber_loss, delta=1.0),
            partial(F.huber_loss, delta=2.0),
            "loss: huber_loss is not the code",
        ),
        (
            nn.MSELoss(),
            F.mse_loss,
            "loss: the checkpoint was trained with MSELoss, this learner has mse_loss",
        ),
        (nn.SmoothL1Loss(beta=2.0), nn.SmoothL1Loss(beta=2.0), None),
    ],
)
def test_another_setting_of_a_loss_is_told(one: Any, other: Any, told: str | None, tmp_path: Path) -> None:
    saved(tmp_path, loss=one)
    _, shown = learner_in(tmp_path, loss=other, resume=True)
    assert [text.startswith(told or "") for text in shown.warnings] == ([] if told is None else [True])


def test_a_step_in_place_of_a_loss_is_told(tmp_path: Path) -> None:
    saved(tmp_path, loss=F.mse_loss)
    _, shown = learner_in(tmp_path, step=step_of(STEP), resume=True)
    assert shown.warnings == ["the checkpoint was trained with loss = mse_loss, and this learner has none"]


class Own(nn.Linear):
    def train_step(self, batch: Any) -> Any:
        return F.mse_loss(self(batch[0]), batch[1])


class Edited(nn.Linear):
    def train_step(self, batch: Any) -> Any:
        return F.l1_loss(self(batch[0]), batch[1])


def test_another_step_of_the_model_itself_is_told(tmp_path: Path) -> None:
    saved(tmp_path, model=Own(4, 1))
    Edited.__qualname__ = Own.__qualname__
    _, shown = learner_in(tmp_path, model=Edited(4, 1), resume=True)
    assert [text for text in shown.warnings if "the model's train_step: train_step is not the code" in text]


def test_a_new_course_says_nothing(tmp_path: Path) -> None:
    learner, shown = learner_in(tmp_path, loss=F.mse_loss)
    learner.step(2)
    learner.loss = F.l1_loss
    learner.rewind(1)
    learner.fit()
    assert shown.warnings == []

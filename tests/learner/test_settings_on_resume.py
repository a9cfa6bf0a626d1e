"""Where the cell's settings and the checkpoint's differ, a line says each, and what holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from notebook_learner import LearnerBuilder
from notebook_learner.event import Marked, Notice

PAIRS = [
    (x, x.sum(1, keepdim=True))
    for x in (torch.randn(8, 4, generator=torch.Generator().manual_seed(n)) for n in range(5))
]
Make = Callable[[Any], Any]


class Shown:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.marks: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice) and event.level == "warning":
            self.warnings.append(event.text)
        if isinstance(event, Marked):
            self.marks.append(event.text)


def learner_in(
    directory: Path, make: Make, schedule: Any = None, configure: Any = lambda builder: None
) -> tuple[Any, Shown]:
    shown = Shown()
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = make(model)
    builder = LearnerBuilder(directory).num_epochs(2).renderer(shown).metrics().with_file_checkpointer()
    configure(builder.loss(F.mse_loss))
    return builder.build(model, optimizer, None if schedule is None else schedule(optimizer), PAIRS), shown


def saved(directory: Path, make: Make, schedule: Any = None, act: Any = lambda learner: None) -> None:
    first, _ = learner_in(directory, make, schedule)
    first.step(3)
    act(first)
    first.save()


def adam(**options: Any) -> Make:
    return lambda model: Adam(model.parameters(), **options)


def resume(builder: Any) -> None:
    builder.resume()


def take_given(builder: Any) -> None:
    builder.resume(settings="given")


def test_each_option_that_differs_is_told_and_the_checkpoints_holds(tmp_path: Path) -> None:
    saved(tmp_path, adam(lr=0.003, betas=(0.9, 0.99)))
    learner, shown = learner_in(tmp_path, adam(lr=0.0003, weight_decay=0.1), configure=resume)
    more = '. .resume(settings="given") takes the cell\'s'
    assert shown.warnings == [
        f"lr: the cell says 0.0003, the checkpoint 0.003: kept 0.003{more}",
        f"betas: the cell says (0.9, 0.999), the checkpoint (0.9, 0.99): kept (0.9, 0.99){more}",
        f"weight_decay: the cell says 0.1, the checkpoint 0: kept 0{more}",
    ]
    assert learner.optimizer.param_groups[0]["lr"] == 0.003
    assert "kept 0.003" in (tmp_path / "experiment.log").read_text()


def test_the_same_settings_say_nothing_and_go_on_exactly(tmp_path: Path) -> None:
    straight, _ = learner_in(tmp_path / "straight", adam(lr=0.01))
    straight.fit()
    saved(tmp_path / "run", adam(lr=0.01))
    learner, shown = learner_in(tmp_path / "run", adam(lr=0.01), configure=take_given)
    learner.fit()
    assert shown.warnings == shown.marks == []
    for one, other in zip(learner.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_given_settings_count_from_there_as_if_they_had_been_set_by_hand(tmp_path: Path) -> None:
    by_hand, _ = learner_in(tmp_path / "by_hand", adam(lr=0.01))
    by_hand.step(3)
    by_hand.lr = 0.1
    by_hand.fit()
    saved(tmp_path / "run", adam(lr=0.01))
    learner, shown = learner_in(tmp_path / "run", adam(lr=0.1), configure=take_given)
    assert shown.warnings == ["lr: the checkpoint says 0.01, the cell 0.1: took 0.1"]
    assert shown.marks == ["the cell's settings: lr"]
    learner.step(3)
    learner.rewind(2)
    learner.fit()
    for one, other in zip(learner.model.parameters(), by_hand.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_checkpoint_and_restore_tell_it_too(tmp_path: Path) -> None:
    saved(tmp_path, adam(lr=0.01))
    _, shown = learner_in(tmp_path, adam(lr=0.1), configure=lambda builder: builder.checkpoint("latest"))
    learner, again = learner_in(tmp_path, adam(lr=0.1))
    learner.restore("latest")
    assert shown.warnings == again.warnings and len(shown.warnings) == 1
    given, told = learner_in(
        tmp_path, adam(lr=0.1), configure=lambda builder: builder.checkpoint("latest", settings="given")
    )
    assert given.optimizer.param_groups[0]["lr"] == 0.1 and "took 0.1" in told.warnings[0]


def test_going_back_in_one_process_says_nothing(tmp_path: Path) -> None:
    learner, shown = learner_in(tmp_path, adam(lr=0.01))
    learner.step(2)
    label = learner.save()
    learner.lr = 0.1
    learner.step(1)
    learner.restore(label)
    assert shown.warnings == [] and learner.optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: StepLR(optimizer, 1, 0.5),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: lambda step: 0.1 / (1 + step),
        lambda optimizer: 0.05,
    ],
    ids=["per epoch", "one cycle", "function", "constant"],
)
def test_where_a_schedule_stands_is_no_setting(schedule: Any, tmp_path: Path) -> None:
    make = adam(lr=0.01)
    saved(tmp_path, make, schedule, lambda learner: learner.step_epoch())
    _, shown = learner_in(tmp_path, make, schedule, resume)
    assert shown.warnings == []


def test_the_first_rate_of_a_schedule_is_told_and_stays(tmp_path: Path) -> None:
    def halved(optimizer: Any) -> Any:
        return StepLR(optimizer, 1, 0.5)

    saved(tmp_path, adam(lr=0.01), halved)
    learner, shown = learner_in(tmp_path, adam(lr=0.1), halved, take_given)
    assert shown.warnings == ["lr: the cell says 0.1, the checkpoint 0.01: kept 0.01; a schedule moves it"]
    assert learner.optimizer.param_groups[0]["lr"] == 0.01


def test_a_rate_in_a_tensor_is_told_and_taken_in_place(tmp_path: Path) -> None:
    saved(tmp_path, adam(lr=torch.tensor(0.01)))
    _, shown = learner_in(tmp_path, adam(lr=torch.tensor(0.1)), configure=resume)
    assert [text.partition(". ")[0] for text in shown.warnings] == [
        "lr: the cell says 0.1, the checkpoint 0.01: kept 0.01"
    ]
    rate = torch.tensor(0.1)
    learner, told = learner_in(tmp_path, adam(lr=rate), configure=take_given)
    assert told.warnings == ["lr: the checkpoint says 0.01, the cell 0.1: took 0.1"]
    assert learner.optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.1)


def test_groups_and_optimizers_are_told_apart(tmp_path: Path) -> None:
    def make(rate: float) -> Make:
        return lambda model: {
            "w": SGD([{"params": [model.weight]}], lr=rate, momentum=0.9),
            "b": SGD([model.bias], lr=0.1),
        }

    saved(tmp_path, make(0.01))
    _, shown = learner_in(tmp_path, make(0.02), configure=resume)
    assert [text.partition(":")[0] for text in shown.warnings] == ["lr of w"]


def test_a_misspelt_choice_is_named() -> None:
    with pytest.raises(ValueError, match="settings='cell': give 'checkpoint' or 'given'"):
        LearnerBuilder("unused").resume(settings="cell")  # type: ignore[arg-type]

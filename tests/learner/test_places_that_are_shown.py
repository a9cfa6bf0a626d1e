"""Wherever a place is told with a total, the total is that of the split and epoch it names."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch.nn.functional as F
from builder_support import adam, batches, net

from notebook_learner import Learner, LearnerBuilder, Paused
from notebook_learner.event import Event
from notebook_learner.metric import Loss
from notebook_learner.renderer import PlainRenderer
from notebook_learner.widget.board import Board

STEPS = {"train": 44, "valid": 7}
EPOCHS = 3
PLACE = re.compile(r"epoch (\d+), (train|valid), step (\d+)(?: of (\d+))?")


class Everything:
    """What the panel and a plain display say of a run."""

    def __init__(self) -> None:
        self.board, self.lines = Board(), io.StringIO()
        self.plain = PlainRenderer(self.lines, progress_seconds=0)
        self.told: list[str] = []

    def handle(self, event: Event) -> None:
        self.plain.handle(event)
        self.board.handle(event)
        self.told.append(str(self.board.moving()["position"]))

    @property
    def text(self) -> str:
        marks = [mark.text for mark in self.board.marks]
        return "\n".join([self.lines.getvalue(), *self.told, *self.board.log, *marks])


def build(folder: Path, shown: Everything, *, resume: bool = False) -> Learner:
    model = net()
    builder = (
        LearnerBuilder(folder / "run").loss(F.cross_entropy).metrics(Loss()).num_epochs(EPOCHS)
        .with_file_checkpointer().renderer(shown)
    )  # fmt: skip
    if resume:
        builder.resume()
    sizes = {split: (2,) * steps for split, steps in STEPS.items()}
    return builder.build(model, adam(model), None, batches(sizes["train"]), batches(sizes["valid"]))


def finish(learner: Learner) -> list[object]:
    learner.fit()
    return [learner, learner.step(), learner.position]


def back_and_forth(learner: Learner) -> list[object]:
    """After the end, as by the panel's slider and its buttons."""
    said: list[object] = finish(learner)
    for to in ((2, 39), 44 + 39, (1, "valid", 3), (1, "valid", 7), (1, 44), (2, "train", 0), (1, "train", 0)):
        with suppress(ValueError):
            said.append(learner.rewind(to=to))
        said += [learner, learner.step(2)]
        learner.fit()
        said += [learner.rewind(1), learner.rewind(8), learner]
        learner.fit()
    return said


def restored(learner: Learner) -> list[object]:
    said: list[object] = []
    learner.fit()
    for label in (2, "latest"):
        learner.restore(label)
        said += [learner, learner.step()]
    label = learner.save()
    learner.step(50)
    learner.restore(label)
    return [*said, learner, *learner.checkpoints, learner.checkpoints]


def paused(learner: Learner) -> list[object]:
    said: list[object] = []
    for at in ((1, 43), (1, "valid", 6), (2, 43), (3, "valid", 7)):
        with suppress(Paused):
            said.append(learner.run_until(at))
        said.append(learner)
    return said


@pytest.mark.parametrize("go", [finish, back_and_forth, restored, paused])
def test_no_step_is_told_of_another_splits_total(
    go: Callable[[Learner], list[object]], tmp_path: Path
) -> None:
    shown = Everything()
    learner = build(tmp_path, shown)
    said = go(learner)
    log = (tmp_path / "run" / "experiment.log").read_text()
    text = "\n".join([shown.text, log, *map(str, said)])
    places = PLACE.findall(text)
    assert len(places) > 5
    wrong = [
        place
        for place in places
        if int(place[0]) > EPOCHS
        or int(place[2]) > STEPS[place[1]]
        or (place[3] and int(place[3]) != STEPS[place[1]])
    ]
    assert wrong == []


def test_a_run_that_is_gone_on_with_says_it_too(tmp_path: Path) -> None:
    learner = build(tmp_path, Everything())
    learner.step(40)
    early = learner.save()
    learner.step(7)
    learner.save()
    shown = Everything()
    learner = build(tmp_path, shown, resume=True)
    learner.step(2)
    learner.restore(early)
    learner.fit()
    places = PLACE.findall(shown.text)
    assert ("1", "valid", "3", "7") in places and ("1", "train", "40", "44") in places
    assert [each for each in places if each[3] and int(each[3]) != STEPS[each[1]]] == []

"""Rate, momentum and weight decay are set on the panel: a change by hand, which the timeline keeps."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
import torch
from page_of_messages import learner_in, page_of
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.widget import message_pace


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def grouped(directory: Path, kind: type[torch.optim.Optimizer], **more: float) -> Learner:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters()}]
    batches = [(torch.randn(4, 4), torch.randint(0, 3, (4,)))] * 5
    builder = LearnerBuilder(directory).loss(F.cross_entropy).renderer("silent").num_epochs(2)
    return builder.build(model, kind(groups, lr=0.1, **more), None, batches)


def test_a_rate_that_is_set_while_it_is_paused_counts_and_is_in_the_timeline(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, with_file_checkpointer=None)
    learner.step(3)
    page = page_of(learner)
    page.ask("hello")
    ok, text = page.answer("set", lr=0.02)
    assert ok and text == "lr is 0.02 from epoch 1, train, step 3 of 10 on"
    page.until(lambda: page.board["dials"][0]["lr"] == "0.02")
    assert learner.optimizer.param_groups[0]["lr"] == 0.02
    assert [(mark["x"], mark["text"]) for mark in page.board["marks"] if mark["kind"] == "edit"] == [
        (3.0, "lr = 0.02")
    ]
    assert "lr = 0.02" in str(learner.tools.timeline)
    learner.rewind(1)
    assert learner.optimizer.param_groups[0]["lr"] == 0.1


def test_a_rate_that_is_set_while_it_runs_counts_from_the_next_step_on(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    at, go = Event(), Event()

    def hold(*_: object) -> None:
        if learner.status == "running" and learner.position.iteration == 4:
            at.set()
            go.wait(30)

    learner.model.register_forward_hook(hold)
    learner.start()
    at.wait(30)
    page.ask("set", 7, lr=0.0)
    go.set()
    page.until(lambda: 7 in page.answers)
    weights = [each.clone() for each in learner.model.parameters()]
    learner.wait()
    assert page.answers[7][0], page.answers
    assert all(map(torch.equal, weights, learner.model.parameters()))
    assert [mark["text"] for mark in page.board["marks"] if mark["kind"] == "edit"] == ["lr = 0"]


def test_each_group_and_each_option_is_set_alone(tmp_path: Path) -> None:
    learner = grouped(tmp_path, torch.optim.SGD, momentum=0.9)
    page = page_of(learner)
    page.ask("hello")
    args = {"lr[1]": 0.5, "momentum": 0.8, "weight_decay[0]": 0.01}
    ok, text = page.answer("set", **args)
    assert ok and text.startswith("lr is 0.1, 0.5 and momentum is 0.8, 0.8 and weight_decay is 0.01, 0 from")
    groups = learner.optimizer.param_groups
    assert [(each["lr"], each["momentum"], each["weight_decay"]) for each in groups] == [
        (0.1, 0.8, 0.01),
        (0.5, 0.8, 0.0),
    ]


def test_the_momentum_of_adam_is_its_first_beta(tmp_path: Path) -> None:
    learner = grouped(tmp_path, torch.optim.Adam)
    page = page_of(learner)
    page.ask("hello")
    assert page.answer("set", momentum=0.5)[0]
    assert [each["betas"] for each in learner.optimizer.param_groups] == [(0.5, 0.999)] * 2
    page.until(lambda: page.board["dials"][1]["momentum"] == "0.5")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"momentum": 0.5}, "the optimizer has no momentum"),
        ({"lr[2]": 0.5}, "there is no lr[2]: the optimizer has 2 parameter groups, lr[0] to lr[1]"),
        ({"lr": -1}, "lr must be a number of at least 0"),
        ({"momentum": 1}, "momentum must be less than 1"),
    ],
)
def test_what_cannot_be_set_is_refused_and_changes_nothing(
    args: dict[str, float], why: str, tmp_path: Path
) -> None:
    learner = grouped(tmp_path, torch.optim.Adagrad)
    page = page_of(learner)
    page.ask("hello")
    ok, text = page.answer("set", **args)
    assert not ok and text.startswith(why)
    assert [each["lr"] for each in learner.optimizer.param_groups] == [0.1, 0.1]

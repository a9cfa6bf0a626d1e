"""A new learner of a model that another one has trained says so; pretrained weights are no such case."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_support import Tape, adam, batches, classifier, net

from notebook_learner import Learner
from notebook_learner.event import Notice
from notebook_learner.metric import Loss


def build(folder: Path, model: Any, *, num_epochs: int = 2, **verbs: Any) -> tuple[Learner, Tape]:
    tape = Tape()
    builder = (
        classifier(folder).metrics(Loss()).num_epochs(num_epochs).renderer(tape).with_file_checkpointer()
    )
    for verb, given in verbs.items():
        getattr(builder, verb)(*given)
    return builder.build(model, adam(model), None, batches()), tape


def said(tape: Tape) -> list[tuple[str, str]]:
    return [(event.level, event.text) for event in tape.of(Notice) if "trained before" in event.text]


def test_the_builder_alone_run_again(tmp_path: Path) -> None:
    model = net()
    learner, tape = build(tmp_path / "run", model)
    learner.fit()
    assert said(tape) == []
    learner, tape = build(tmp_path / "run", model)
    learner.fit()
    learner.fit(epochs=1)
    assert said(tape) == [
        (
            "warning",
            f"this model has been trained before in this kernel, by the learner of {tmp_path / 'run'}: "
            "its weights are not fresh, and epoch 1 starts from them; make a new model in the same cell as "
            "the learner to start anew, or add .resume() to go on",
        )
    ]


@pytest.mark.parametrize("verb", ["fit", "step", "start"])
def test_whatever_begins_it(verb: str, tmp_path: Path) -> None:
    model = net()
    build(tmp_path, model)[0].step()
    learner, tape = build(tmp_path, model)
    getattr(learner, verb)()
    if verb == "start":
        learner.wait()
    assert len(said(tape)) == 1


def test_a_second_stage_elsewhere_is_told_and_not_warned_of(tmp_path: Path) -> None:
    model = net()
    build(tmp_path / "pretrained", model)[0].fit()
    learner, tape = build(tmp_path / "tuned", model)
    learner.fit()
    ((level, text),) = said(tape)
    assert level == "info" and text.endswith("its weights are not fresh, and epoch 1 starts from them")


def test_pretrained_weights_are_no_case_of_it(tmp_path: Path) -> None:
    pretrained = net(seed=3)
    learner, tape = build(tmp_path / "a", pretrained)
    learner.fit()
    assert said(tape) == []
    other = copy.deepcopy(pretrained)
    learner, tape = build(tmp_path / "a", other)
    learner.fit()
    assert said(tape) == []


def test_weights_that_were_set_since_are_fresh(tmp_path: Path) -> None:
    model = net()
    fresh = copy.deepcopy(model.state_dict())
    build(tmp_path, model)[0].fit()
    model.load_state_dict(fresh)
    learner, tape = build(tmp_path, model)
    learner.fit()
    assert said(tape) == []


@pytest.mark.parametrize("verbs", [{"resume": ()}, {"checkpoint": ("latest",)}, {"checkpoint": (1,)}])
def test_going_on_with_the_run_is_no_case_of_it(verbs: dict[str, Any], tmp_path: Path) -> None:
    model = net()
    build(tmp_path, model)[0].fit()
    learner, tape = build(tmp_path, model, num_epochs=4, **verbs)
    learner.fit()
    assert said(tape) == []


def test_a_run_that_was_taken_back_to_its_start_leaves_fresh_weights(tmp_path: Path) -> None:
    model = net()
    learner, _ = build(tmp_path, model)
    learner.step(3)
    learner.rewind(3)
    learner, tape = build(tmp_path, model)
    learner.fit()
    assert said(tape) == []


def test_steps_that_were_only_tried_are_no_training(tmp_path: Path) -> None:
    model = net()
    learner, _ = build(tmp_path, model)
    learner.tools.try_step()
    learner.what_if(2, lr=0.1)
    learner, tape = build(tmp_path, model)
    learner.fit()
    assert said(tape) == []


def test_a_restored_state_is_no_fresh_start(tmp_path: Path) -> None:
    model = net()
    learner, _ = build(tmp_path / "a", model)
    learner.step(3)
    state = learner.capture()
    learner, tape = build(tmp_path / "b", model)
    learner.restore(state)
    learner.fit()
    assert said(tape) == []


def test_a_model_without_parameters_that_train_is_compared_too(tmp_path: Path) -> None:
    model = net()
    for each in list(model.parameters())[:-1]:
        each.requires_grad_(False)
    build(tmp_path, model)[0].step()
    learner, tape = build(tmp_path, model)
    learner.step()
    assert len(said(tape)) == 1
    with torch.no_grad():
        list(model.parameters())[-1].zero_()
    learner, tape = build(tmp_path, model)
    learner.step()
    assert said(tape) == []

"""What is changed by hand, or set on the learner, while a training stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch
from shapes_support import (
    AT,
    EPOCHS,
    PAIRS,
    Change,
    Net,
    add_head,
    another_loss,
    are,
    bits,
    by_hand,
    in_place,
    made,
    merge_encoder,
    momentum,
    mse,
    objects,
    one_thread,
    optimizer_of,
    same,
    unfreeze,
    unfreeze_all,
)
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import ConfigurationError
from notebook_learner.state.shape import ShapePart


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


# By hand ---------------------------------------------------------------------------------------------


BY_HAND = [unfreeze, unfreeze_all, merge_encoder, in_place, momentum, another_loss]
"""Changes without random draws: while the run stands still, a cell draws from the notebook's own stream."""
OF_STRUCTURE = [unfreeze, unfreeze_all, merge_encoder, in_place, momentum]


@pytest.mark.parametrize("change", BY_HAND)
def test_a_change_by_hand_counts_and_goes_with_a_rewind(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    there = objects(learner)
    learner.step(AT - 2)
    change(learner)
    learner.fit()
    assert same(bits(learner.model), by_hand(change))
    learner.rewind(to=2)
    assert are(objects(learner), there)
    learner.fit()
    assert same(bits(learner.model), by_hand(lambda run: None))


@pytest.mark.parametrize("change", BY_HAND)
def test_going_back_to_after_a_change_by_hand_keeps_it(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    change(learner)
    learner.step(4)
    learner.rewind(3)
    assert same(bits(learner.model), by_hand(change, steps=AT + 1))
    learner.fit()
    assert same(bits(learner.model), by_hand(change))


@pytest.mark.parametrize("change", OF_STRUCTURE)
def test_a_change_by_hand_is_resumed_by_a_function_that_makes_it_or_told(
    change: Change, tmp_path: Path
) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    change(learner)
    learner.step(2)
    learner.save()
    del learner
    with pytest.raises(
        ConfigurationError, match=r"a change by hand \(at training step 3\).*\.reshapes\(change\)"
    ):
        made(tmp_path, resume=True)
    again = made(tmp_path, change, resume=True)
    again.fit()
    assert same(bits(again.model), by_hand(change))


@pytest.mark.parametrize("kept", [True, False])
def test_flags_that_were_set_by_hand_are_in_the_state(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the part of the state that has them, the end is another: the control."""

    def freeze(run: Any) -> None:
        run.model.head.bias.requires_grad_(False)

    learner = made(tmp_path)
    learner.step(AT)
    freeze(learner)
    learner.step(2)
    learner.save()
    del learner
    if not kept:
        monkeypatch.setattr(ShapePart, "go_to", lambda self, state, at: self.look())
    again = made(tmp_path, resume=True)
    again.fit()
    assert same(bits(again.model), by_hand(freeze)) is kept


def test_the_history_tells_what_came_and_when(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(add_head)
    learner.step()
    unfreeze(learner)
    learner.step()
    told = [mark.text for mark in learner.history.marks if mark.kind == "edited"]
    assert told[0] == "reshaped by add_head"
    assert told[1].startswith("changed by hand: another optimizer or other parameter groups")


@pytest.mark.parametrize("by_name", [True, False])
def test_a_run_in_the_background_is_changed_at_a_boundary(by_name: bool, tmp_path: Path) -> None:
    gate, passed = Event(), Event()

    def waits(learner: Learner) -> None:
        if learner.position.iteration == AT:
            passed.set()
            assert gate.wait(60)

    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent").on("update", waits)
    learner = builder.build(model, optimizer_of(model), None, PAIRS)
    torch.manual_seed(7)
    learner.start()
    assert passed.wait(60)
    Timer(0.5, gate.set).start()
    if by_name:
        learner.reshape(unfreeze)
    else:
        with learner.paused():
            unfreeze(learner)
    learner.wait()
    (made_at,) = {mark.step for mark in learner.history.marks if mark.kind == "edited"}
    assert same(bits(model), by_hand(unfreeze, at=made_at))
    learner.rewind(to=made_at + 1)
    assert same(bits(model), by_hand(unfreeze, at=made_at, steps=made_at + 1))
    learner.rewind(to=made_at - 1)
    assert len(learner.optimizer.param_groups) == 1


def test_a_layer_that_comes_in_a_validation_trains_in_the_next_epoch(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent")
    learner = builder.build(model, optimizer_of(model), None, PAIRS, PAIRS[:2])
    learner.run_until((1, "valid", 1))
    model.head = nn.Sequential(model.head, nn.Dropout(0.5), nn.Linear(1, 1))
    learner.optimizer.add_param_group({"params": model.head[2].parameters()})
    learner.run_until((2, 1))
    assert all(each.training for each in model.modules())


# Set -------------------------------------------------------------------------------------------------


def test_another_optimizer_ends_the_schedule_of_the_former_one_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    former = optimizer_of(model)
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent")
    learner = builder.build(model, former, StepLR(former, 1), PAIRS)
    learner.step(2)
    learner.optimizer = SGD(model.head.parameters(), lr=0.1)
    assert learner.scheduler is None
    assert "learner.scheduler" in (tmp_path / "experiment.log").read_text()
    learner.scheduler = later = StepLR(learner.optimizer, 1, gamma=0.5)
    learner.fit()
    assert learner.scheduler is later
    assert learner.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**EPOCHS
    learner.rewind(to=1)
    assert (
        learner.optimizer is former
        and isinstance(learner.scheduler, StepLR)
        and learner.scheduler is not later
    )


def test_a_rate_by_function_goes_on_with_another_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent")
    learner = builder.build(model, optimizer_of(model), lambda step: 0.1 / (1 + step), PAIRS)
    learner.step(2)
    learner.optimizer = SGD(model.head.parameters(), lr=0.1)
    learner.step()
    assert learner.optimizer.param_groups[0]["lr"] == 0.1 / 2


def test_several_optimizers_may_take_the_place_of_one(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    there = learner.optimizer
    learner.model.encoder.requires_grad_(True)
    learner.optimizer = {
        "head": SGD(learner.model.head.parameters(), lr=0.1),
        "rest": Adam(learner.model.encoder.parameters()),
    }
    learner.step(3)
    assert list(learner.optimizer) == ["head", "rest"]
    learner.rewind(4)
    assert learner.optimizer is there
    learner.fit()


@pytest.mark.parametrize("given", [3, SGD([nn.Parameter(torch.ones(1))], lr=0.1)])
def test_what_is_no_optimizer_of_this_model_is_refused_and_changes_nothing(
    given: Any, tmp_path: Path
) -> None:
    learner = made(tmp_path)
    learner.step(2)
    there = objects(learner)
    with pytest.raises(ConfigurationError, match="this optimizer cannot be used"):
        learner.optimizer = given
    assert are(objects(learner), there)


def test_other_data_counts_from_the_next_step_on(tmp_path: Path) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        seen.append(batch)
        return mse(model(batch[0]), batch[1])

    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).train_step(step).num_epochs(EPOCHS).renderer("silent")
    learner = builder.build(model, optimizer_of(model), None, PAIRS)
    learner.step(2)
    learner.train = others = [(x + 1, y) for x, y in PAIRS]
    learner.step()
    assert seen[-1][0] is others[2][0]

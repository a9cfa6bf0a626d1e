"""Shapes that change in mid-run, compared with a loop by hand that calls the same function at that step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from shapes_support import (
    AT,
    CHANGES,
    EPOCHS,
    PAIRS,
    STEPS,
    Change,
    Net,
    add_head,
    are,
    attach,
    bits,
    by_hand,
    made,
    momentum,
    mse,
    objects,
    one_thread,
    optimizer_of,
    same,
    unfreeze,
    unfreeze_all,
)
from torch import Tensor, nn
from torch.optim import Adam

from notebook_learner import LearnerBuilder
from notebook_learner.breakpoint import NonFinite
from notebook_learner.checkpoint import Hdf5Recorder, NamedMpkGzRecorder, SafetensorsRecorder
from notebook_learner.errors import ConfigurationError, Paused, StateError


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize("change", CHANGES)
def test_a_reshaped_run_is_the_loop_by_hand(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(change)
    assert same(bits(learner.model), by_hand(change, steps=AT))
    learner.fit()
    assert same(bits(learner.model), by_hand(change))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("further", [1, 4])
def test_going_back_over_it_brings_the_same_objects_back_and_going_on_needs_no_new_call(
    change: Change, further: int, tmp_path: Path
) -> None:
    learner = made(tmp_path)
    learner.step(2)
    there, there_bits = objects(learner), bits(learner.model)
    learner.step(AT - 2)
    learner.reshape(change)
    learner.step(further)
    learner.rewind(to=2)
    assert are(objects(learner), there)
    assert same(bits(learner.model), there_bits)
    learner.fit()
    assert same(bits(learner.model), by_hand(change))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [AT, AT + 1, len(PAIRS) + 2])
def test_a_new_program_that_knows_the_function_resumes(change: Change, steps: int, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(change)
    if steps > AT:
        learner.step(steps - AT)
    learner.save()
    del learner
    again = made(tmp_path, change, resume=True)
    assert again.position.iteration == steps
    again.fit()
    assert same(bits(again.model), by_hand(change))


@pytest.mark.parametrize("kind", [Hdf5Recorder, NamedMpkGzRecorder, SafetensorsRecorder])
def test_every_recorder_keeps_the_shape(kind: type, tmp_path: Path) -> None:
    def program(*changes: Change) -> LearnerBuilder:
        builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent")
        return builder.with_file_checkpointer(kind()).reshapes(*changes)

    torch.manual_seed(3)
    model = Net()
    learner = program().build(model, optimizer_of(model), None, PAIRS)
    torch.manual_seed(7)
    learner.step(AT)
    learner.reshape(add_head)
    learner.step(2)
    learner.save()
    del learner
    fresh = Net()
    again = program(add_head).resume().build(fresh, optimizer_of(fresh), None, PAIRS)
    again.fit()
    assert same(bits(again.model), by_hand(add_head))


@pytest.mark.parametrize("change", CHANGES)
def test_a_program_without_the_function_is_told_its_name_and_the_line(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(change)
    learner.step()
    learner.save()
    del learner
    with pytest.raises(
        ConfigurationError,
        match=rf"after {change.__name__} \(at training step 3\).*\.reshapes\({change.__name__}\)",
    ):
        made(tmp_path, resume=True)


@pytest.mark.parametrize("change", CHANGES)
def test_states_and_checkpoints_are_restored_across_it_both_ways(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    before, saved = learner.capture(), learner.save()
    before_bits = bits(learner.model)
    learner.step(1)
    learner.reshape(change)
    learner.step(2)
    after, later = learner.capture(), learner.save()
    after_bits = bits(learner.model)
    for _ in range(2):
        learner.restore(before)
        assert same(bits(learner.model), before_bits)
        learner.restore(after)
        assert same(bits(learner.model), after_bits)
        learner.restore(saved)
        assert same(bits(learner.model), before_bits)
        learner.restore(later)
        assert same(bits(learner.model), after_bits)
    learner.restore(saved)
    learner.fit()
    assert same(bits(learner.model), by_hand(change))


@pytest.mark.parametrize("change", CHANGES)
def test_what_if_then_compares_and_leaves_nothing(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    there, there_bits = objects(learner), bits(learner.model)
    found = learner.what_if(3, then=change)
    assert found.first_difference is not None
    assert are(objects(learner), there) and same(bits(learner.model), there_bits)
    learner.fit()
    assert same(bits(learner.model), by_hand(lambda run: None))


@pytest.mark.parametrize("change", CHANGES)
def test_a_fork_goes_the_same_way_and_can_go_back_on_its_own(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path / "parent", change)
    learner.step(AT)
    learner.reshape(change)
    learner.step(1)
    child = learner.fork(tmp_path / "child")
    child.fit()
    assert same(bits(child.model), by_hand(change))
    learner.fit()
    assert same(bits(learner.model), by_hand(change))


def test_a_fork_knows_what_is_to_come_and_the_function_that_makes_it(tmp_path: Path) -> None:
    learner = made(tmp_path / "parent")
    learner.step(AT)
    learner.reshape(add_head)
    learner.step(1)
    learner.rewind(2)
    child = learner.fork(tmp_path / "child")
    child.fit()
    assert same(bits(child.model), by_hand(add_head))


def test_a_breakpoint_watches_the_layers_that_come_again(tmp_path: Path) -> None:
    def infinite(run: Any) -> None:
        add_head(run)
        run.model.head[0].bias.register_hook(lambda grad: grad / 0 if run.position.iteration > AT else grad)

    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(infinite)
    learner.rewind(2)
    learner.breakpoints.add(NonFinite())
    with pytest.raises(Paused):
        learner.fit()
    assert learner.position.iteration == AT + 1 and "head.0.bias" in str(learner.hit)


@pytest.mark.parametrize("change", [unfreeze, add_head, attach, momentum])
def test_verify_finds_it_exact_here_and_in_a_new_process(change: Change, tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(change)
    learner.step(1)
    found = learner.verify(2)
    assert found.exact and not found.untried, found


# Noted changes ---------------------------------------------------------------------------------------


def test_two_changes_are_made_again_in_their_order(tmp_path: Path) -> None:
    def both(at: int, run: Any) -> None:
        if at == 2:
            add_head(run)
        elif at == 4:
            unfreeze_all(run)

    def straight() -> list[Tensor]:
        torch.manual_seed(3)
        model = Net()
        run = SimpleNamespace(model=model, optimizer=optimizer_of(model))
        torch.manual_seed(7)
        model.train()
        for step in range(STEPS):
            both(step, run)
            x, y = PAIRS[step % len(PAIRS)]
            run.optimizer.zero_grad()
            mse(model(x), y).backward()
            run.optimizer.step()
        return bits(model)

    learner = made(tmp_path)
    learner.step(2)
    learner.reshape(add_head)
    learner.step(2)
    learner.reshape(unfreeze_all)
    learner.step(3)
    learner.rewind(to=1)
    learner.step(2)
    learner.rewind(1)
    learner.save()
    copytree(tmp_path, tmp_path / "copy", ignore=ignore_patterns(".*.tmp"))
    expected = straight()
    learner.fit()
    assert same(bits(learner.model), expected)
    again = made(
        tmp_path / "copy", add_head, unfreeze_all, resume=True
    )  # at step 2: what was to come is known
    assert again.position.iteration == 2
    again.fit()
    assert same(bits(again.model), expected)


def test_what_is_to_come_can_be_dropped(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(add_head)
    learner.step()
    learner.rewind(to=1)
    learner.reshape(None)
    learner.fit()
    assert same(bits(learner.model), by_hand(lambda run: None))


def test_a_state_of_another_course_brings_what_was_to_come_there(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT + 1)
    learner.reshape(add_head)
    learner.step(1)
    learner.rewind(to=AT)
    state = learner.capture()
    learner.rewind(2)
    learner.reshape(momentum)  # before the state's step: that course did not make it
    learner.step(4)
    learner.restore(state)
    learner.fit()
    assert same(bits(learner.model), by_hand(add_head, at=AT + 1))


def test_a_state_that_is_refused_plans_nothing(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(add_head)
    learner.step(1)
    state = learner.capture()
    learner.rewind(2)
    learner.reshape(None)
    there = objects(learner)
    broken = {**state.parts, "scheduler": None, "model": {"tensors": {}, "extra": {}}}
    with pytest.raises(StateError):
        learner.restore(replace(state, parts=broken))
    assert are(objects(learner), there)
    learner.fit()
    assert same(bits(learner.model), by_hand(lambda run: None))


def test_a_new_change_begins_a_new_course(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(add_head)
    learner.step()
    learner.rewind(to=2)
    learner.reshape(momentum)
    learner.fit()
    assert same(bits(learner.model), by_hand(momentum, at=2))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_fails_leaves_everything_as_it_was(change: Change, tmp_path: Path) -> None:
    def failing(run: Any) -> None:
        change(run)
        run.model.flag = 3
        raise ZeroDivisionError("in the midst")

    learner = made(tmp_path)
    learner.step(AT)
    there, there_bits = objects(learner), bits(learner.model)
    with pytest.raises(ZeroDivisionError):
        learner.reshape(failing)
    assert are(objects(learner), there) and same(bits(learner.model), there_bits)
    assert not hasattr(learner.model, "flag")
    learner.fit()
    assert same(bits(learner.model), by_hand(lambda run: None))


def test_an_error_in_a_step_after_it_is_taken_back_to_the_boundary_before(tmp_path: Path) -> None:
    failing = [False]

    def step(model: Any, batch: Any) -> Any:
        loss = mse(model(batch[0]), batch[1])
        if failing[0] and len(model.head) == 3:
            failing[0] = False
            raise ZeroDivisionError
        return loss

    torch.manual_seed(3)
    model = Net()
    model.head = nn.Sequential(model.head)
    builder = (
        LearnerBuilder(tmp_path).train_step(step).num_epochs(EPOCHS).renderer("silent").keyframes(every=100)
    )
    learner = builder.build(model, Adam(model.head.parameters()), None, PAIRS)
    learner.step(2)
    learner.reshape(add_head)
    learner.step(2)
    expected = bits(model)
    failing[0] = True
    with pytest.raises(ZeroDivisionError):
        learner.step()
    assert same(bits(model), expected) and learner.position.iteration == 4


def test_a_change_in_an_open_window_keeps_its_gradients(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent").grads_accumulation(2)
    learner = builder.build(model, optimizer_of(model), None, PAIRS)
    torch.manual_seed(7)
    learner.step(3)
    learner.reshape(unfreeze)
    learner.step(3)
    expected = bits(model)
    learner.rewind(5)
    learner.step(5)
    assert same(bits(model), expected)


def test_an_average_of_the_weights_cannot_follow_layers_that_come(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).num_epochs(EPOCHS).renderer("silent").ema(0.9)
    learner = builder.build(model, optimizer_of(model), None, PAIRS)
    learner.step(2)
    there = objects(learner)
    with pytest.raises(StateError, match=r"ema\(\).*average"):
        learner.reshape(add_head)
    assert are(objects(learner), there)
    learner.reshape(unfreeze)
    learner.fit()


def test_the_lambda_of_a_change_is_found_by_its_place(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(AT)
    learner.reshape(lambda run: unfreeze(run))
    learner.step()
    learner.rewind(2)
    learner.step(3)
    learner.save()
    expected = bits(learner.model)
    del learner
    again = made(tmp_path, unfreeze, resume=True)
    assert same(bits(again.model), expected)


def namesake(function: Change) -> Change:
    def other(learner: Any) -> None:
        function(learner)

    other.__name__ = function.__name__
    return other


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ([3], "give a function that takes the learner"),
        ([lambda learner: None], "its own name"),
        ([add_head, lambda learner: None], "its own name"),
        (
            [add_head, unfreeze, namesake(add_head)],
            "two functions of the name 'add_head'",
        ),
    ],
)
def test_functions_that_no_file_can_tell_apart_are_refused(functions: Any, said: str, tmp_path: Path) -> None:
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(mse).renderer("silent").reshapes(*functions)
    with pytest.raises(ConfigurationError, match=said):
        builder.build(model, optimizer_of(model), None, PAIRS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"log": [["add_head", [1, 0, 3], 3]]},
        {"log": [["add_head", [1, 0, 3], 3, 5]]},
        {"log": [["add_head", [1, 0, "x"], 3, "0"]]},
        {"log": 7},
        {"coming": [None]},
        {"frozen": [["head.weight"]]},
        {"frozen": None},
        {"parameters": 3},
    ],
    ids=repr,
)
def test_a_state_that_says_nothing_true_of_its_shape_is_refused(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    learner = made(tmp_path)
    learner.step(2)
    state = learner.capture()
    told = {**state.parts["shape"].plain(), **wrong}
    learner.step(1)
    there = bits(learner.model)
    with pytest.raises(StateError, match="valid state"):
        learner.restore(replace(state, parts={**state.parts, "shape": told}))
    assert same(bits(learner.model), there)
    learner.restore(replace(state, parts={**state.parts, "shape": state.parts["shape"].plain()}))
    assert learner.position.iteration == 2

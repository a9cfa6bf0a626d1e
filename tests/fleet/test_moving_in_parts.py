"""With weights in parts every verb moves all ranks, and what is taken again gives the same bits."""

from __future__ import annotations

import time

import pytest
import torch
from fleet_support import TWO, bits, furthest, train_loader, valid_loader
from parts_support import begun, deep
from torch.nn import functional as F

from notebook_learner.breakpoint import AtStep, GradNorm, LossSpike, NonFinite
from notebook_learner.errors import StateError


def supplied(directory, devices=TWO, dropout=0.5, **options):
    learner = begun(directory, devices, dropout=dropout, **options)
    learner._supplies.use(learner, "train", train_loader())
    learner._supplies.use(learner, "valid", valid_loader())
    return learner


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The bits of an undisturbed run of two ranks, with dropout on both."""
    learner = supplied(tmp_path_factory.mktemp("straight"))
    learner.fit()
    return bits(learner)


def test_stepping_ends_with_the_bits_of_a_run_that_never_stopped(tmp_path, straight):
    learner = supplied(tmp_path)
    for n in (1, 3, 1, 6):
        learner.step(n)
    learner.step_epoch()
    learner.fit()
    assert bits(learner) == straight


def test_rewinding_and_going_on_gives_the_same_bits(tmp_path, straight):
    learner = supplied(tmp_path, configure=lambda b: b.keyframes(every=3))
    learner.step(13)
    assert learner.rewind(4).exact
    learner.step(2)
    assert learner.rewind(to=(1, 3)).exact
    assert [each.step for each in learner.devices] == [3, 3]
    learner.fit()
    assert bits(learner) == straight


def test_what_is_only_looked_at_leaves_all_ranks_as_they_were(tmp_path, straight):
    learner = supplied(tmp_path)
    learner.step(4)
    x, _ = valid_loader().dataset.tensors
    assert learner.model(x).shape == (101, 3), "the model is whole while the learner stands still"
    learner.inspect("next")
    learner.tools.try_step()
    comparison = learner.what_if(5, lr=0.5)
    assert comparison.baseline["loss"][0] == comparison.changed["loss"][0]
    learner.tools.lr_find(1e-4, 1.0, steps=12)
    learner.evaluate(valid_loader(), name="test")
    learner.predict(valid_loader())
    learner.fork(tmp_path / "forked").step(1)
    assert learner.optimizer.state[learner.model.first.weight]["exp_avg"].shape == (32, 10)
    learner.fit()
    assert bits(learner) == straight


@pytest.mark.parametrize("strategies", [("fsdp", "fsdp"), ("fsdp", None), ("ddp", "fsdp"), ("fsdp", "ddp")])
@pytest.mark.rounds(1)
def test_a_state_captured_inside_a_window_is_whole_and_goes_on_anywhere(tmp_path, strategies):
    def learner_of(strategy, name):
        def configure(builder):
            builder.grads_accumulation(3)
            if strategy is not None:
                builder.strategy(strategy)

        learner = begun(tmp_path / name, None if strategy is None else TWO, configure, epochs=2)
        learner._supplies.use(learner, "train", train_loader())
        return learner

    first, then = strategies
    learner = learner_of(first, "first")
    learner.step(5)
    state = learner.capture()
    learner.fit()
    again = learner_of(then, "then")
    again.restore(state)
    again.fit()
    if first == then:
        assert bits(again) == bits(learner)
    assert furthest(again.model, learner.model) < 1e-6


def test_a_pause_lands_all_ranks_on_one_step_and_is_not_to_be_seen(tmp_path):
    def run(pauses):
        learner = begun(tmp_path / f"paused {pauses}", dropout=0.5, epochs=30)
        learner.start(train_loader())
        for _ in range(pauses):
            time.sleep(0.3)
            learner.pause()
            assert {each.step for each in learner.devices} == {learner.position.iteration}
            learner.resume()
            with learner.paused():
                weights = learner.model.first.weight
                assert type(weights) is torch.nn.Parameter and bool(weights.isfinite().all())
                learner.model.first(torch.ones(2, 10))
            learner.save()
        learner.wait()
        return bits(learner)

    assert run(2) == run(0)


def test_what_a_person_changes_between_steps_holds_on_all_ranks(tmp_path):
    def trained(devices):
        learner = supplied(tmp_path / str(devices), devices, dropout=0.0)
        learner.step(3)
        learner.optimizer.param_groups[0]["lr"] = 0.5
        with torch.no_grad():
            learner.model.second.weight.data[2].mul_(0.5)  # of a row that rank 1 has
        learner.step(3)
        return learner.model

    assert furthest(trained(TWO), trained(None)) < 1e-6


def test_a_breakpoint_stops_all_ranks_before_its_step_and_shows_it(tmp_path, straight):
    learner = supplied(tmp_path, configure=lambda b: b.break_on(AtStep(5), LossSpike()))
    assert learner.step_epoch().why == "breakpoint"
    assert [each.step for each in learner.devices] == [4, 4]
    assert learner.model.first.weight.grad.shape == (32, 10)
    assert learner.output.loss.requires_grad
    learner.fit()
    assert bits(learner) == straight


def test_a_breakpoint_that_looks_at_gradients_is_refused_before_the_run(tmp_path):
    learner = supplied(tmp_path, configure=lambda b: b.break_on(lambda moment: moment.loss > 100))
    learner.breakpoints.add(NonFinite())
    learner.breakpoints.add(GradNorm(above=5.0))
    with pytest.raises(StateError, match=r"NonFinite.*GradNorm.* would see only rank 0's part"):
        learner.step(1)
    learner.breakpoints.clear()
    learner.breakpoints.add(lambda moment: len(moment.gradients) > 9)
    with pytest.raises(StateError, match="no rank has whole gradients"):
        learner.step(1)
    learner.breakpoints.clear()
    learner.step(1)
    assert learner.position.step == 1


def test_layers_in_parts_are_stepped_and_rewound_to_the_bit(tmp_path):
    straight = deep(tmp_path / "straight")
    straight.fit(train_loader(), valid_loader())
    learner = deep(tmp_path / "stepped")
    learner._supplies.use(learner, "train", train_loader())
    learner._supplies.use(learner, "valid", valid_loader())
    learner.step(5)
    learner.rewind(2)
    learner.fit()
    assert bits(learner) == bits(straight)


def test_a_forward_pass_beside_a_step_is_refused_and_not_waited_for(tmp_path):
    learner = supplied(tmp_path)
    model = learner.model

    def asks(learner):
        model(torch.ones(2, 10))

    with pytest.raises(StateError, match="would wait for the others for ever"):
        learner.run_until(asks)
    learner.step(1)
    assert F.cross_entropy(model(torch.ones(2, 10)), torch.tensor([0, 1])).isfinite()


def test_a_condition_that_asks_the_learner_sees_whole_weights(tmp_path, straight):
    learner, seen = supplied(tmp_path), []

    def asks(learner):
        weight = learner.model.first.weight
        seen.append((type(weight), float(weight.detach().abs().sum())))
        return len(seen) == 4

    learner.run_until(asks)
    assert {kind for kind, _ in seen} == {torch.nn.Parameter}
    assert len({total for _, total in seen}) == 4
    learner.fit()
    assert bits(learner) == straight

"""A step that is tried: it is seen, and nothing has happened."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from builder_support import Stream, Tape, adam, batches, classifier, net
from exactness import Setup, differences, everything, logs, straight

from notebook_learner import ConfigurationError, StateError

SETUPS = [
    Setup(),
    Setup(seed=None),
    Setup(workers=2),
    Setup(workers=2, persistent=True, seed=None),
    Setup(window=3, scheduler="cycle", clip=True),
    Setup(ema=True, scheduler="epoch", own_generator=True, seed=None),
    Setup(files=True, precision="bf16"),
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_trying_steps_all_along_leaves_the_straight_run(setup, tmp_path):
    expected = straight(setup, tmp_path / "straight")
    learner = setup.learner(tmp_path / "tried")
    learner.tools.try_step()
    for steps in (2, 4, 3):  # before the first step, in the epoch, before its end, in the validation
        learner.step(steps)
        before, files = everything(learner), logs(tmp_path / "tried")
        learner.tools.try_step()
        assert list(differences(everything(learner), before)) == []
        assert logs(tmp_path / "tried") == files
    learner.fit()
    assert list(differences(everything(learner), expected[0])) == []
    assert logs(tmp_path / "tried").keys() == expected[1].keys()
    assert {name: text for name, text in logs(tmp_path / "tried").items() if "Speed" not in name} == expected[
        1
    ]


def learner_in(directory, **given):
    model = net(dropout=0.3)
    tape = Tape()
    builder = classifier(directory).num_epochs(2).renderer(tape)
    return builder.build(model, adam(model), None, given.get("data", batches())), tape


def test_it_gives_what_the_next_step_gives(tmp_path):
    learner, _ = learner_in(tmp_path)
    trial = learner.tools.try_step()
    assert (trial.position.epoch, trial.position.step) == (1, 1)
    learner.step()
    assert torch.equal(trial.output.loss, learner.output.loss)


def test_another_function_is_tried_once(tmp_path):
    learner, _ = learner_in(tmp_path)
    trial = learner.tools.try_step(lambda model, batch: model(batch[0]).sum() * 0)
    assert trial.output.loss == 0 and learner._step_in_use("train") is None
    assert learner.step().values["Loss"] > 0


def test_what_is_no_function_does_not_become_the_step(tmp_path):
    learner, _ = learner_in(tmp_path)
    with pytest.raises(TypeError, match=r"use_step\('train', 3\): give a function fn\(model, batch\)"):
        learner.tools.use_step("train", 3)
    assert learner._step_in_use("train") is None
    assert learner.step().steps == 1


def test_nobody_hears_of_it(tmp_path):
    learner, tape = learner_in(tmp_path)
    learner.step(2)
    heard = len(tape.events)
    keyframes = list(learner._replica.timeline.keyframes)
    learner.tools.try_step()
    assert len(tape.events) == heard and learner.status == "paused"
    assert learner._replica.timeline.keyframes == keyframes


def test_the_user_s_own_generators_and_what_the_last_step_left_are_untouched(tmp_path):
    learner, _ = learner_in(tmp_path)
    for steps in (0, 2):
        if steps:
            learner.step(steps)
        learner.model.eval()
        batch, output = learner.batch, learner.output
        grads = [parameter.grad for parameter in learner.model.parameters()]
        values = [None if grad is None else grad.clone() for grad in grads]
        drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        learner.tools.try_step()
        assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == drawn
        assert learner.batch is batch and learner.output is output and not learner.model.training
        for parameter, grad, value in zip(learner.model.parameters(), grads, values, strict=True):
            assert parameter.grad is grad and (grad is None or torch.equal(grad, value))


def test_an_error_in_it_changes_nothing(tmp_path):
    learner, _ = learner_in(tmp_path)
    learner.step(2)
    before = everything(learner)

    def broken(model, batch):
        torch.rand(3)
        with torch.no_grad():
            next(model.parameters()).zero_()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        learner.tools.try_step(broken)
    assert list(differences(everything(learner), before)) == []
    assert learner.status == "paused" and not learner._replica.loop.quiet


def test_where_there_is_no_step_to_try_it_says_so(tmp_path):
    learner, _ = learner_in(tmp_path / "a")
    learner.fit()
    with pytest.raises(StateError, match=r"training is finished.*fit\(epochs=n\)"):
        learner.tools.try_step()
    learner, _ = learner_in(tmp_path / "b", data=Stream(batches()))
    with pytest.raises(StateError, match="can be walked only once"):
        learner.tools.try_step()
    learner, _ = learner_in(tmp_path / "c", data=None)
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        learner.tools.try_step(lambda model, batch: None)


def test_after_the_last_training_step_there_is_none_to_try(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, adam(model), None, batches(), batches()[:2])
    learner.run_until((1, "valid", 1))
    before = everything(learner)
    with pytest.raises(StateError, match="the last training step has been taken"):
        learner.tools.try_step()
    assert list(differences(everything(learner), before)) == []

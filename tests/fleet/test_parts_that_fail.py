"""With weights in parts, a rank that dies or raises leaves no half of a model behind; and what is refused."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from fleet_support import TWO, bits, furthest, train_loader
from parts_support import begun
from torch.nn import functional as F

from notebook_learner.errors import RankDied, StateError

posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
HOME = os.getpid()


def running(directory, epochs=12, memory=None, **more):
    """A learner in training, with dropout, in the background."""

    def slow(model, batch):
        x, y = batch
        time.sleep(0.005)
        return F.cross_entropy(model(x), y)

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(slow).keyframes(every=5, memory=memory).metrics()
        builder._settings.metrics = []
        more.get("configure", lambda builder: None)(builder)

    learner = begun(directory, configure=configure, epochs=epochs, dropout=0.5)
    learner.start(train_loader())
    while learner.position.iteration < 10:
        time.sleep(0.01)
    return learner


def killed(learner):
    os.kill(learner.devices[1].pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        learner.wait()
    return learner


@posix
@pytest.mark.soak
def test_after_a_rank_was_killed_the_last_keyframe_is_whole_and_restart_goes_on_to_the_same_bits(tmp_path):
    learner = killed(running(tmp_path / "killed"))
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())
    assert learner.position.iteration % 5 == 0 or learner.position.step == 0, "an epoch's start has one, too"
    learner.devices.restart()
    assert [each.alive for each in learner.devices] == [True, True]
    learner.fit()
    straight = running(tmp_path / "straight")
    straight.wait()
    assert bits(learner) == bits(straight)


@posix
@pytest.mark.soak
def test_without_a_keyframe_the_last_checkpoint_is_what_is_left(tmp_path):
    def configure(builder):
        builder.with_file_checkpointer()

    learner = running(tmp_path / "killed", epochs=30, memory=1, configure=configure)
    while learner.position.epoch < 3:
        time.sleep(0.02)
    killed(learner)
    assert learner.position.step == 0
    assert learner.position.epoch >= 2
    learner.devices.restart()
    learner.num_epochs = learner.position.epoch + 1
    learner.fit()
    straight = running(tmp_path / "straight", epochs=learner.num_epochs)
    straight.wait()
    assert bits(learner) == bits(straight)


@posix
@pytest.mark.soak
def test_where_nothing_whole_is_left_the_learner_says_so_until_a_state_is_restored(tmp_path):
    learner = running(tmp_path, epochs=30, memory=1)
    with learner.paused():
        state = learner.capture()
    while learner.position.iteration < state.position.iteration + 3:
        time.sleep(0.01)
    killed(learner)
    for verb in (learner.capture, learner.save, learner.devices.restart):
        with pytest.raises(StateError, match="not all parts are left"):
            verb()
    learner.restore(state)
    learner.devices.restart()
    learner.step(1)
    assert learner.position.iteration == state.position.iteration + 1
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())


@pytest.mark.parametrize("walks_again", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["on rank 1", "on rank 0"])
@pytest.mark.rounds(1)
def test_after_an_exception_in_a_step_the_learner_stands_whole_before_it(tmp_path, elsewhere, walks_again):
    def step(model, batch):
        x, y = batch
        output = model(x)
        if bool((y == 7).any()) and (os.getpid() != HOME) == elsewhere:
            raise ValueError("only here")
        return F.cross_entropy(output, y.clamp(max=2))

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step).metrics()
        builder._settings.metrics = []

    def batches(spoilt):
        for number, (x, y) in enumerate(list(train_loader())):
            if spoilt and number == 3:
                y[-1 if elsewhere else 0] = 7
            yield x, y

    def prepared(directory, spoilt):
        learner = begun(directory, TWO if spoilt else None, configure=configure)
        data = batches(spoilt) if not walks_again else list(batches(spoilt))
        learner._supplies.use(learner, "train", data)
        return learner

    learner, straight = prepared(tmp_path / "a", True), prepared(tmp_path / "b", False)
    with pytest.raises(ValueError, match="only here"):
        learner.fit()
    torch.manual_seed(5)
    straight.step(3)
    assert learner.position.step == 3
    assert furthest(learner.model, straight.model) < 1e-6
    assert type(learner.model) is type(straight.model)

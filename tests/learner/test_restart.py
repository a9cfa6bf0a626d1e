"""`.checkpoint(k)`: a fresh learner goes on after epoch k, to the bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import Tape, batches, classifier, mistakes_of, net, one_mistake_of, sgd
from exactness import Noisy, differences, everything, logs
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from notebook_learner import LearnerBuilder, MemoryCheckpointer, StateError
from notebook_learner.event import Rewound, RunOpened, SplitStarted
from notebook_learner.metric import Accuracy, LearningRate, Loss

NUM_EPOCHS = 4


def model_of_all():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def learner_of_all(directory, kept, *, seed, which=None, loaders="build"):
    """Dropout, shuffling, augmentation, a schedule of steps, an average: whatever a restart can lose."""
    model = model_of_all()
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train(LearningRate())
        .loss(F.cross_entropy)
        .num_epochs(NUM_EPOCHS)
        .ema(0.9)
        .early_stopping("Loss", patience=50)
        .precision("fp16")
        .renderer("silent")
        .with_application_logger(False)
        .with_checkpointer(kept)
    )
    if seed is not None:
        builder.seed(seed)
    if which is not None:
        builder.checkpoint(which)
    data = shuffled(20, 1), shuffled(8, 2)
    given = data if loaders == "build" else ()
    learner = builder.build(
        model,
        torch.optim.Adam(model.parameters(), lr=0.02),
        lambda optimizer: OneCycleLR(optimizer, max_lr=0.1, total_steps=5 * NUM_EPOCHS),
        *given,
    )
    return learner, () if loaders == "build" else data


def shuffled(size, source):
    """A loader with a generator of its own: its place in that is part of where the run stands."""
    generator = torch.Generator().manual_seed(source)
    return DataLoader(Noisy(size, source), batch_size=4, shuffle=True, generator=generator)


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("loaders", ["build", "fit"])
@pytest.mark.parametrize("epoch", [1, 3, "latest"])
def test_a_restarted_run_ends_in_the_bits_of_the_uninterrupted_one(epoch, loaders, seed, tmp_path):
    kept = MemoryCheckpointer()
    torch.manual_seed(1)
    straight, _ = learner_of_all(tmp_path / "straight", kept, seed=seed)
    if epoch == "latest":
        straight.step_epoch()
        straight.step_epoch()
        straight.step()  # a checkpoint is kept when its epoch is over and the next begins
        states = MemoryCheckpointer()
        states.states = dict(kept.states)
    else:
        states = kept
    straight.fit()

    torch.manual_seed(99)
    again, data = learner_of_all(tmp_path / "again", states, seed=seed, which=epoch, loaders=loaders)
    first = max(states.states) + 1 if epoch == "latest" else epoch + 1
    assert again.position.epoch == first
    again.fit(*data)
    assert list(differences(everything(again), everything(straight))) == []
    assert logs(tmp_path / "again") == logs(tmp_path / "straight")


def test_a_restart_trains_the_epochs_after_the_checkpoint_and_no_others(tmp_path):
    kept, screen = MemoryCheckpointer(), Tape()
    model = net()
    classifier(tmp_path).num_epochs(4).with_checkpointer(kept).build(model, sgd(model)).fit(batches())
    model = net()
    builder = classifier(tmp_path).num_epochs(4).with_checkpointer(kept).checkpoint(2).renderer(screen)
    builder.build(model, sgd(model)).fit(batches())
    passes = [(event.epoch, event.split) for event in screen.of(SplitStarted)]
    assert passes == [(3, "train"), (4, "train")]


def test_every_epoch_is_kept(tmp_path):
    kept = MemoryCheckpointer()
    model = net()
    classifier(tmp_path).num_epochs(3).with_checkpointer(kept).build(model, sgd(model)).fit(batches())
    assert {epoch: state.position.epoch for epoch, state in kept.states.items()} == {1: 2, 2: 3, 3: 4}


def test_an_epoch_ended_early_is_kept_too(tmp_path):
    kept = MemoryCheckpointer()
    model = net()
    builder = classifier(tmp_path).num_epochs(9).with_checkpointer(kept)
    learner = builder.early_stopping("Loss", patience=1, split="train").build(model, sgd(model), 0.0)
    learner.fit(batches())
    assert list(kept.states) == [1, 2]


def test_weights_history_and_place_are_there_as_soon_as_it_is_built(tmp_path):
    kept = MemoryCheckpointer()
    first = net()
    straight = classifier(tmp_path / "a").num_epochs(2).with_checkpointer(kept).build(first, sgd(first))
    straight.fit(batches())
    second = net(seed=5)
    builder = classifier(tmp_path / "b").num_epochs(3).with_checkpointer(kept).checkpoint(2)
    again = builder.build(second, sgd(second, lr=0.5))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert again.optimizer.param_groups[0]["lr"] == 0.1
    assert (again.position.epoch, again.status) == (3, "paused")
    assert again.history["train", "Loss"].tolist() == straight.history["train", "Loss"].tolist()


def test_a_finished_run_is_finished_when_its_last_checkpoint_is_loaded(tmp_path):
    kept = MemoryCheckpointer()
    first, second = net(), net(seed=5)
    classifier(tmp_path).num_epochs(2).with_checkpointer(kept).build(first, sgd(first)).fit(batches())
    builder = classifier(tmp_path).num_epochs(2).with_checkpointer(kept).checkpoint("latest")
    learner = builder.build(second, sgd(second), None, batches())
    assert learner.fit() is second
    assert learner.status == "finished"
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_an_epoch_that_was_kept_is_not_kept_again_by_the_restart(tmp_path):
    class Counting(MemoryCheckpointer):
        def save(self, epoch, state, /):
            saved.append(epoch)
            super().save(epoch, state)

    saved = []
    kept = Counting()
    first, second = net(), net()
    classifier(tmp_path).num_epochs(2).with_checkpointer(kept).build(first, sgd(first)).fit(batches())
    saved.clear()
    builder = classifier(tmp_path).num_epochs(4).with_checkpointer(kept).checkpoint(2)
    builder.build(second, sgd(second)).fit(batches())
    assert saved == [3, 4]


def test_the_run_opens_before_it_is_restored(tmp_path):
    """A renderer counts from the opening, and would forget the epochs before."""
    kept, screen = kept_epochs(tmp_path, 1), Tape()
    model = net()
    builder = classifier(tmp_path).num_epochs(2).with_checkpointer(kept).checkpoint(1).renderer(screen)
    builder.build(model, sgd(model)).fit(batches())
    kinds = [type(event) for event in screen.events]
    assert kinds.index(RunOpened) < kinds.index(Rewound)
    assert kinds.count(RunOpened) == 1


# What cannot be restarted ----------------------------------------------------------------------------


def kept_epochs(tmp_path, epochs):
    kept = MemoryCheckpointer()
    model = net()
    classifier(tmp_path).num_epochs(epochs).with_checkpointer(kept).build(model, sgd(model)).fit(batches())
    return kept


def test_a_missing_checkpoint_is_told_with_those_there_are(tmp_path):
    builder = classifier(tmp_path).num_epochs(9).with_checkpointer(kept_epochs(tmp_path, 3)).checkpoint(7)
    assert one_mistake_of(builder) == "there is no checkpoint 7; kept are: 1, 2, 3"


@pytest.mark.parametrize("which", [1, "latest", "best"])
def test_where_nothing_was_kept_that_is_told(which, tmp_path):
    builder = classifier(tmp_path).with_checkpointer(MemoryCheckpointer()).checkpoint(which)
    assert one_mistake_of(builder) == f"there is no checkpoint {which}; kept are: none"


def test_a_missing_checkpoint_is_told_beside_the_optimizers_mistakes(tmp_path):
    builder = classifier(tmp_path).num_epochs(9).with_checkpointer(kept_epochs(tmp_path, 1)).checkpoint(5)
    said = mistakes_of(builder, net(), sgd(net()))
    assert said[0] == "there is no checkpoint 5; kept are: 1"
    assert "parameters are not the model's" in said[1]


def test_without_a_checkpointer_it_is_a_mistake_and_no_fresh_start(tmp_path):
    assert "training would start over with fresh weights" in one_mistake_of(
        classifier(tmp_path).checkpoint(1)
    )


def test_a_checkpoint_of_another_model_is_told_by_name_and_shape(tmp_path):
    kept = kept_epochs(tmp_path, 1)
    other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 4))
    with pytest.raises(StateError, match=r"3\.weight: the state has \(3, 8\), the model \(4, 8\)"):
        classifier(tmp_path).with_checkpointer(kept).checkpoint(1).build(other, sgd(other))


# A state and loaders that come later -----------------------------------------------------------------


@pytest.mark.parametrize("steps", [3, 5, 6, 7])
def test_loaders_may_come_after_a_state_was_restored(steps, tmp_path):
    """In the middle of training, between the splits, in validation, and after an epoch."""
    straight, _ = learner_of_all(tmp_path / "straight", MemoryCheckpointer(), seed=None)
    straight.step(steps)
    state = straight.capture()
    straight.fit()

    late, data = learner_of_all(tmp_path / "late", MemoryCheckpointer(), seed=None, loaders="fit")
    late.restore(state)
    late.fit(*data)
    assert list(differences(everything(late), everything(straight))) == []
    assert logs(tmp_path / "late") == logs(tmp_path / "straight")

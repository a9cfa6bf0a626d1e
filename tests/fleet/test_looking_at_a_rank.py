"""`inspect(rank=1)`: what the step of another rank looks like, which is left as it was."""

from __future__ import annotations

import pytest
import torch
from fleet_support import TWO, bits, learner_on, train_loader
from torch.nn import functional as F

from notebook_learner import ClassificationOutput
from notebook_learner.errors import StateError


def begun(directory, **more):
    learner = learner_on(TWO, directory, dropout=0.5, **more)
    torch.manual_seed(5)
    return learner


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    learner = begun(tmp_path_factory.mktemp("straight"))
    learner.fit(train_loader())
    return bits(learner)


def test_each_rank_is_seen_with_its_own_part_of_the_batch_and_stays_as_it_was(tmp_path, straight):
    learner = begun(tmp_path)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(4)
    own, other = learner.inspect(), learner.inspect(rank=1)
    assert [own.batch[0].shape[0], other.batch[0].shape[0]] == [8, 8]
    assert own.batch[0].statistics.mean != other.batch[0].statistics.mean, "not the same samples"
    assert own.loss != other.loss
    assert other.place == f"{own.place}, rank 1"
    assert [each.name for each in other.layers] == [each.name for each in own.layers]
    assert learner._last_seen is other, "the panel shows what was asked for last"
    learner.fit()
    assert bits(learner) == straight


def test_the_batch_to_come_is_the_one_that_the_rank_then_trains_on(tmp_path, straight):
    learner = begun(tmp_path)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(2)
    coming = learner.inspect("next", rank=1)
    learner.step(1)
    assert learner.inspect(rank=1).batch[0].statistics.mean == coming.batch[0].statistics.mean
    learner.rewind(2)
    learner.step(2)
    assert learner.inspect(rank=1).batch[0].statistics.mean == coming.batch[0].statistics.mean
    learner.fit()
    assert bits(learner) == straight


def test_a_batch_of_ones_own_is_looked_at_there_as_it_is(tmp_path):
    learner = begun(tmp_path)
    learner._supplies.use(learner, "train", train_loader())
    x, y = torch.randn(5, 10), torch.zeros(5, dtype=torch.int64)
    assert learner.inspect((x, y), rank=1).batch[0].shape == (5, 10)
    assert learner.devices[1].step == 0


class Trap(torch.utils.data.TensorDataset):
    """One sample, which only rank 1 has, is NaN."""

    def __init__(self):
        x = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
        x[31] = torch.nan
        super().__init__(x, torch.zeros(32, dtype=torch.int64))


def test_the_rank_whose_data_are_not_finite_is_the_one_that_shows_it(tmp_path):
    learner = begun(tmp_path)
    learner._supplies.use(learner, "train", torch.utils.data.DataLoader(Trap(), batch_size=8))
    learner.step(3)
    assert learner.inspect("next").first_non_finite is None
    assert "batch" in str(learner.inspect("next", rank=1).first_non_finite)


def test_the_batch_of_a_step_that_failed_there_is_still_at_hand(tmp_path):
    def step(model, batch):
        x, y = batch
        if not bool(torch.isfinite(x).all()):
            raise ValueError("a sample is NaN")
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step)

    learner = begun(tmp_path, configure=configure)
    with pytest.raises(ValueError, match="a sample is NaN"):
        learner.fit(torch.utils.data.DataLoader(Trap(), batch_size=8))
    seen = learner.inspect(rank=1)
    assert seen.batch[0].statistics.nan == 10
    assert "a sample is NaN" in seen.failed
    assert learner.inspect().failed is None


def test_a_rank_that_is_not_there_is_named_with_the_last_one(tmp_path):
    learner = begun(tmp_path / "two")
    learner._supplies.use(learner, "train", train_loader())
    with pytest.raises(StateError, match="there is no rank 2; the last one is 1"):
        learner.inspect(rank=2)
    alone = learner_on(None, tmp_path / "one")
    alone._supplies.use(alone, "train", train_loader())
    with pytest.raises(StateError, match="there is no rank 1; there is one device, rank 0"):
        alone.inspect(rank=1)


def test_a_loader_that_only_rank_0_walks_has_no_next_batch_elsewhere(tmp_path):
    learner = begun(tmp_path)
    batches = (batch for batch in list(train_loader()))
    learner._supplies.use(learner, "train", batches)
    with pytest.raises(StateError, match="does not know the one to come"):
        learner.inspect("next", rank=1)
    learner.step(1)
    assert learner.inspect(rank=1).batch[0].shape[0] == 8

"""Adding devices changes no number: weights and metrics are those of one process with the whole batches."""

from __future__ import annotations

import pytest
import torch
from fleet_support import (
    TWO,
    by_hand,
    furthest,
    learner_on,
    samples,
    train_loader,
    valid_loader,
)
from torch.nn import functional as F
from torch.utils.data import DataLoader

from notebook_learner import TrainOutput
from notebook_learner.metric import AUROC, ConfusionMatrix, Loss, Precision


def fitted(learner, train, valid=None):
    torch.manual_seed(5)
    learner.fit(train, valid)
    return learner


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.rounds(1)
def test_after_three_epochs_the_weights_are_those_of_a_loop_written_by_hand(tmp_path, ranks):
    learner = fitted(learner_on(["cpu"] * ranks, tmp_path), train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6


def test_accumulated_batches_are_one_batch_on_several_devices_too(tmp_path):
    learner = learner_on(TWO, tmp_path, configure=lambda b: b.grads_accumulation(3))
    fitted(learner, train_loader())
    assert furthest(learner.model, by_hand(train_loader(), window=3)) < 1e-6


def test_a_batch_of_fewer_samples_than_ranks_counts_as_what_it_is(tmp_path):
    loader = train_loader(batch_size=16, count=33)  # the third batch has one sample
    learner = fitted(learner_on(TWO, tmp_path), loader)
    assert furthest(learner.model, by_hand(train_loader(batch_size=16, count=33))) < 1e-6


@pytest.mark.parametrize(
    "data",
    [
        lambda: list(DataLoader(samples(), batch_size=16)),
        lambda: _Stream(),
    ],
    ids=["a list of batches", "a loader of one's own"],
)
def test_whatever_gives_the_batches_they_are_the_same(tmp_path, data):
    learner = fitted(learner_on(TWO, tmp_path), data())
    assert furthest(learner.model, by_hand(data())) < 1e-6


class _Stream:
    """Draws its order batch by batch from the same generator that a model's dropout draws from."""

    def __iter__(self):
        x, y = samples().tensors
        for _ in range(5):
            rows = torch.randint(len(x), (9,))
            yield x[rows], y[rows]


def test_a_step_that_runs_backward_itself_is_summed_as_well(tmp_path):
    def step(model, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        item = type("Item", (), {"loss": loss, "output": model(x).detach(), "targets": y})()
        return TrainOutput(model, loss.backward(), item)

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step)

    learner = fitted(learner_on(TWO, tmp_path, configure=configure), train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6


def test_metrics_are_of_the_whole_batch_and_never_a_mean_of_means(tmp_path):
    def configure(builder):
        builder.metrics(AUROC(), Precision.multiclass()).metric_valid(ConfusionMatrix())

    one = fitted(learner_on(None, tmp_path / "1", configure=configure), train_loader(), valid_loader())
    two = fitted(learner_on(TWO, tmp_path / "2", configure=configure), train_loader(), valid_loader())
    for split in ("train", "valid"):
        for name in ("Loss", "Accuracy"):  # of each step
            alone, together = one.history[split, name], two.history[split, name]
            assert together == pytest.approx(alone, rel=1e-5)
    for alone, together in zip(one.history.snapshot(), two.history.snapshot(), strict=True):
        assert together.finals["Accuracy"] == alone.finals["Accuracy"]
        assert together.finals == pytest.approx(alone.finals, rel=1e-5)  # of each epoch
    tables = [each.history.texts("Confusion Matrix", "valid")[-1] for each in (one, two)]
    assert tables[0] == tables[1]


def test_a_metric_that_cannot_be_merged_is_refused_by_its_name(tmp_path):
    class Kept(Loss):
        name = "Kept"

        def state_dict(self):
            return {"kept": 1}

    from notebook_learner.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"Kept keeps a state of its own .* define merge"):
        learner_on(TWO, tmp_path, configure=lambda b: b.metrics(Kept()))


def test_so_is_one_that_answers_for_the_epoch_and_does_not_say_from_what(tmp_path):
    class Last(Loss):
        name = "Last"

        def compute(self):
            return 1.0

    from notebook_learner.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"Last keeps a state of its own .* define merge"):
        learner_on(TWO, tmp_path, configure=lambda b: b.metrics(Last()))


@pytest.mark.parametrize(("kind", "apart"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)])
def test_weights_of_another_precision_are_summed_in_it(tmp_path, kind, apart):
    """In half precision the samples behind a sum are counted beside it: above 256 it would not hold them."""
    x, y = samples().tensors
    batches = [(x[at : at + 16].to(kind), y[at : at + 16]) for at in range(0, 101, 16)]
    alone, together = (learner_on(devices, tmp_path / str(devices)) for devices in (None, TWO))
    for learner in (alone, together):
        learner.model.to(kind)
        fitted(learner, batches)
    assert furthest(together.model, alone.model) < apart
    for epoch in (1, 2, 3):
        found = [each.history.final("Accuracy", "train", epoch) for each in (alone, together)]
        assert found[1] == pytest.approx(found[0], abs=3.0)

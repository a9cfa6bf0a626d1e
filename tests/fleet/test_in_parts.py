"""Weights in parts on several ranks change no number: they are those of one process with whole batches."""

from __future__ import annotations

import pytest
import torch
from fleet_support import TWO, by_hand, furthest, samples, train_loader, valid_loader
from parts_support import begun, deep
from torch.nn import functional as F
from torch.utils.data import DataLoader

from notebook_learner.metric import GradNorm


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.rounds(1)
def test_after_three_epochs_the_weights_are_those_of_a_loop_written_by_hand(tmp_path, ranks):
    learner = begun(tmp_path, ["cpu"] * ranks)  # the last layer has three rows: one of four ranks has none
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader())) < 1e-6


def test_accumulated_batches_are_one_batch(tmp_path):
    learner = begun(tmp_path, configure=lambda b: b.grads_accumulation(3))
    learner.fit(train_loader())
    assert furthest(learner.model, by_hand(train_loader(), window=3)) < 1e-6


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("kind", [lambda loader: loader, list], ids=["a loader", "a list"])
def test_a_rank_without_a_sample_takes_part_and_counts_for_nothing(tmp_path, kind, window):
    loader = train_loader(batch_size=16, count=33)  # the third batch has one sample
    learner = begun(tmp_path, configure=lambda b: b.grads_accumulation(window))
    data = kind(loader)
    torch.manual_seed(5)
    learner.fit(data, DataLoader(samples(7), batch_size=3))
    counted = [record.finals["Accuracy"] for record in learner.history.snapshot()]
    alone = begun(tmp_path / "alone", None, configure=lambda b: b.grads_accumulation(window))
    data = kind(loader) if kind is not list else data
    torch.manual_seed(5)
    alone.fit(data, DataLoader(samples(7), batch_size=3))
    assert furthest(learner.model, alone.model) < 1e-6
    assert counted == [record.finals["Accuracy"] for record in alone.history.snapshot()]


def test_metrics_norms_and_clipping_are_those_of_the_whole_batch(tmp_path):
    def configure(builder):
        builder.clip_gradients(norm=0.3).metric_train(GradNorm())

    one, two = begun(tmp_path / "1", None, configure), begun(tmp_path / "2", TWO, configure)
    for learner in (one, two):
        torch.manual_seed(5)
        learner.fit(train_loader(), valid_loader())
    assert furthest(two.model, one.model) < 1e-6
    for split, name in (
        ("train", "Loss"),
        ("train", "Accuracy"),
        ("valid", "Loss"),
        ("train", "Gradient Norm"),
    ):
        assert two.history[split, name] == pytest.approx(one.history[split, name], rel=1e-5)
    assert max(one.history["train", "Gradient Norm"]) > 0.3, "nothing was clipped"


def test_values_are_clipped_one_by_one(tmp_path):
    def fitted(devices):
        learner = begun(tmp_path / str(devices), devices, lambda b: b.clip_gradients(value=0.01))
        learner.fit(train_loader())
        return learner.model

    assert furthest(fitted(TWO), fitted(None)) < 1e-6


def test_layers_brought_together_one_by_one_give_the_numbers_of_whole_models_on_the_same_ranks(tmp_path):
    """Running statistics are of each rank's part, so it is the other strategy that has the same ones."""
    whole = deep(tmp_path / "ddp", strategy="ddp")
    whole.fit(train_loader(), valid_loader())
    parts = deep(tmp_path / "fsdp")
    names = {name: type(module) for name, module in parts.model.named_modules()}
    known = list(parts.model.parameters())
    parts.fit(train_loader(), valid_loader())
    assert furthest(parts.model, whole.model) < 1e-6
    assert {name: type(module) for name, module in parts.model.named_modules()} == names
    assert all(p is q for p, q in zip(parts.model.parameters(), known, strict=True))
    assert parts.model.again.weight is parts.model.first.weight
    measured = parts.history.snapshot()[-1].finals["Loss"]
    x, y = valid_loader().dataset.tensors
    parts.model.eval()
    assert measured == pytest.approx(F.cross_entropy(parts.model(x), y).item(), rel=1e-5)


def test_in_a_step_a_rank_has_but_its_part_of_weights_gradients_and_moments(tmp_path):
    seen = {}

    def step(model, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        optimizer = learner.optimizer
        own = [p for group in optimizer.param_groups for p in group["params"]]
        seen["rows"] = [len(p) for p in own]
        seen["moments"] = [len(optimizer.state[p]["exp_avg"]) for p in own if p in optimizer.state]
        return type("Item", (), {"loss": loss, "output": model(x), "targets": y})()

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step)

    learner = begun(tmp_path, configure=configure, epochs=1)
    learner.fit(train_loader())
    assert seen == {"rows": [16, 16, 2, 2], "moments": [16, 16, 2, 2]}
    assert [len(p) for p in learner.optimizer.param_groups[0]["params"]] == [32, 32, 3, 3]


@pytest.mark.parametrize(("kind", "apart"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)])
def test_weights_of_another_precision_are_summed_in_it(tmp_path, kind, apart):
    x, y = samples().tensors
    batches = [(x[at : at + 16].to(kind), y[at : at + 16]) for at in range(0, 101, 16)]
    alone, together = (begun(tmp_path / str(devices), devices) for devices in (None, TWO))
    for learner in (alone, together):
        learner.model.to(kind)
        learner.fit(batches)
    assert furthest(together.model, alone.model) < apart


def test_autocast_computes_as_on_one_device(tmp_path):
    def fitted(devices):
        learner = begun(tmp_path / str(devices), devices, lambda b: b.precision("bf16"))
        learner.fit(train_loader())
        return learner.model

    assert furthest(fitted(TWO), fitted(None)) < 0.05

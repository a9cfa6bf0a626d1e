"""Early stopping and the best checkpoint go by any metric and split, and by all epochs of a resumed run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from builder_support import batches, net, quiet, sgd

from notebook_learner.checkpoint import KeepAny, KeepBest, KeepLast
from notebook_learner.metric import CharErrorRate, Loss, Metric

LEVELS = [5, 4, 6, 3, 3, 4, 2, 6]
BATCH = (4,)


class Level(Metric):
    name = "Level"
    needs = ("level",)

    def __init__(self, higher_is_better):
        self.higher_is_better = higher_is_better

    def update(self, item):
        return item.level, 1


def run(directory, rule, *, start=0, keep=None):
    """A learner whose metrics take the planned levels, epoch by epoch, in both splits."""
    levels = {"train": LEVELS[start:], "valid": LEVELS[start:]}

    def step(split):
        def told(model, batch):
            level = levels[split].pop(0)
            # Up with the level: the loss, the level, and the characters wrong out of ten.
            texts = {"predictions": ["x" * level + "y" * (10 - level)], "targets": ["y" * 10]}
            return SimpleNamespace(loss=model(batch[0]).sum() * 0 + level, level=float(level), **texts)

        return told

    metric, options = rule
    builder = (
        quiet(directory)
        .train_step(step("train"))
        .valid_step(step("valid"))
        .metrics(Loss(), CharErrorRate(), Level(higher_is_better=metric == "Level"))
        .num_epochs(len(LEVELS))
        .early_stopping(metric, **options)
        .with_file_checkpointer()
    )
    return builder if keep is None else builder.with_checkpointing_strategy(keep)


def built(builder):
    model = net()
    return builder.build(model, sgd(model), None, batches(BATCH), batches(BATCH))


RULES = [
    ("Loss", {"patience": 2}),
    ("CER", {"patience": 1}),
    ("Level", {"patience": 2}),
    ("Level", {"patience": 4, "split": "train"}),
    ("CER", {"patience": 2, "min_delta": 15.0}),
    ("Loss", {"patience": 2, "warmup": 4}),
    ("Loss", {"patience": 2, "warmup": 3, "min_delta": 0.5, "split": "train"}),
    ("Loss", {"patience": 2, "mode": "max"}),
]


def last_epoch(rule):
    """By the definition: the epochs since the last improvement, those of the warm-up not counted."""
    metric, options = rule
    up = options.get("mode", "max" if metric == "Level" else "min") == "max"
    values = [level * (10.0 if metric == "CER" else 1.0) * (1 if up else -1) for level in LEVELS]
    best, waited = None, 0
    for epoch, value in enumerate(values, start=1):
        if best is None or value - best > options.get("min_delta", 0.0):
            best, waited = value, 0
        elif epoch > options.get("warmup", 0):
            waited += 1
        if waited >= options["patience"]:
            return epoch
    return len(values)


@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_resumed_from_disk_stops_where_the_straight_one_does(rule, tmp_path):
    straight = built(run(tmp_path / "straight", rule))
    straight.fit()
    ended = last_epoch(rule)
    assert straight.history.epoch_numbers("valid").tolist() == list(range(1, ended + 1))
    for epoch in sorted({1, ended // 2, ended - 1} - {0}):
        directory = tmp_path / str(epoch)
        first = built(run(directory, rule))
        first.run_until((epoch + 1, "train", 0))
        first.pause()
        first._replica.saving.close()
        second = built(run(directory, rule, start=epoch).checkpoint("latest"))
        assert second.position.epoch == epoch + 1
        second.fit()
        assert second.history.epoch_numbers("valid").tolist() == list(range(1, ended + 1))


def test_rules_end_at_different_epochs():
    """The control: rules that all ran to the end would agree however wrongly they were resumed."""
    assert len({last_epoch(rule) for rule in RULES}) >= 4


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (KeepBest("Loss"), 7),
        (KeepBest("CER"), 7),
        (KeepBest("Level"), 3),  # the first of equals
        (KeepBest("Level", "train"), 3),
        (KeepBest("Loss", "train", mode="max"), 3),
    ],
)
@pytest.mark.parametrize("cut", [None, 1, 3, 4, 7])
def test_the_best_epoch_is_that_of_the_whole_run(keep, kept, cut, tmp_path):
    never = ("Level", {"patience": 100})
    strategy = KeepAny(KeepLast(1), keep)
    if cut is not None:
        first = built(run(tmp_path, never, keep=strategy))
        first.run_until((cut + 1, "train", 0))
        first._replica.saving.close()
    builder = run(tmp_path, never, start=cut or 0, keep=strategy)
    learner = built(builder if cut is None else builder.checkpoint("latest"))
    learner.fit()
    learner._replica.saving.close()
    assert [info.label for info in learner.checkpoints] == [str(kept), "8"]


def test_min_delta_is_in_the_metrics_own_unit():
    assert last_epoch(("CER", {"patience": 2, "min_delta": 15.0})) != last_epoch(("CER", {"patience": 2}))


def test_levels_are_numbers_that_tell_rules_apart():
    assert torch.tensor(LEVELS).unique().numel() == 5

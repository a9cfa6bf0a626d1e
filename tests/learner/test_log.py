"""Values that a step tells by name: `learner.log("Margin", value)`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builder_support import Tape, adam, batches, classifier, net
from exactness import differences, everything
from outside import Outside
from torch.nn import functional as F

from notebook_learner import BusyError, ClassificationOutput, StepError
from notebook_learner.event import MetricAdded
from notebook_learner.metric import Loss


def learner_in(directory, *, every=1, values=None, epochs=2, renderer="silent", **log):
    """A learner whose step logs its largest score, at every so many steps."""
    model = net(dropout=0.3, seed=1)
    holder = {}

    def step(module, batch):
        x, y = batch
        output = module(x)
        here = holder["learner"]
        if here.position.iteration >= log.get("start", 0) and here.position.step % every == 0:
            here.log("Largest score", output.max() if values is None else values(here))
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    builder = classifier(directory).num_epochs(epochs).seed(5).metrics(Loss()).renderer(renderer)
    builder._settings.loss = None
    builder.train_step(step).valid_step(step).with_file_checkpointer()
    learner = holder["learner"] = builder.build(model, adam(model), 0.01, batches(), batches()[:2])
    return learner


def test_a_logged_value_is_a_metric_with_history_logs_and_averages(tmp_path):
    values = lambda learner: learner.position.step * 1.5  # noqa: E731
    learner = learner_in(tmp_path, values=values)
    learner.fit()
    assert learner.history["train", "Largest score", 1].tolist() == [0.0, 1.5, 3.0, 4.5]
    lines = (tmp_path / "train/epoch-1/Largest_score.log").read_text().splitlines()
    sizes = [len(y) for _, y in batches()]
    assert lines[:4] == [f"{format(i * 1.5, 'g')},{size}" for i, size in enumerate(sizes)]
    mean = np.average([0.0, 1.5, 3.0, 4.5], weights=sizes)
    assert learner.history.final("Largest score", "train", 1) == pytest.approx(mean, rel=1e-15)
    assert (
        "Largest score" in learner.artifacts.to_pandas().columns
        or learner.artifacts.series("Largest score", "train").value.tolist()
    )


@pytest.mark.parametrize("other", ["Largest_score", "LARGEST SCORE"])
def test_two_names_may_not_share_a_log(other, tmp_path):
    holder = []

    def values(learner):
        holder[0].log(other, 1.0)
        return 2.0

    holder.append(learner_in(tmp_path, values=values))
    with pytest.raises(StepError, match=rf"log\('Largest score', ...\) would write the log of '{other}'"):
        holder[0].step()
    assert holder[0].position.iteration == 0


def test_steps_that_log_nothing_have_no_value_and_no_weight(tmp_path):
    learner = learner_in(tmp_path, every=2, values=lambda learner: 7.0)
    learner.step(3)
    seen = learner.history["train", "Largest score"].tolist()
    assert seen[0] == seen[2] == 7.0 and math.isnan(seen[1])
    assert (tmp_path / "train/epoch-1/Largest_score.log").read_text().splitlines()[1] == "NaN,0"


def test_a_name_that_comes_late_has_no_value_before(tmp_path):
    learner = learner_in(tmp_path, start=2, values=lambda learner: 1.0)
    learner.fit()
    first = learner.history["train", "Largest score", 1]
    assert np.isnan(first[:2]).all() and first[2:].tolist() == [1.0, 1.0]
    assert (tmp_path / "train/epoch-1/Largest_score.log").read_text().splitlines()[0] == "NaN,0"


def test_everybody_who_shows_metrics_is_told_once_for_each_split(tmp_path):
    told = Tape()
    learner = learner_in(tmp_path, renderer=told)
    learner.fit()
    assert [(each.info.name, each.info.split) for each in told.of(MetricAdded)] == [
        ("Largest score", "train"),
        ("Largest score", "valid"),
    ]
    assert {info.name for info in learner.history.infos} == {"Loss", "Largest score"}


def test_a_tensor_is_taken_as_it_is_at_that_moment(tmp_path):
    running = torch.zeros(())

    def values(learner):
        running.add_(1)
        return running

    learner = learner_in(tmp_path, values=values)
    learner.step(4)
    assert learner.history["train", "Largest score"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_logged_values_are_rewound_and_come_again_bit_for_bit(tmp_path):
    straight = learner_in(tmp_path / "a", start=2)
    straight.fit()
    learner = learner_in(tmp_path / "b", start=2)
    learner.step(7)
    learner.rewind(6)
    assert "Largest score" not in learner._replica.loop.passes["train"].metrics.logged
    learner.step(2)
    learner.rewind(1)
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    name = "train/epoch-1/Largest_score.log"
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_checkpoint_brings_logged_metrics_into_a_new_learner(tmp_path):
    learner = learner_in(tmp_path)
    learner.step(3)
    label = learner.save()
    told = Tape()
    again = learner_in(tmp_path, renderer=told)
    again.restore(label)
    assert [each.info.name for each in told.of(MetricAdded)] == ["Largest score"]
    again.fit()
    straight = learner_in(tmp_path / "straight")
    straight.fit()
    assert list(differences(everything(again), everything(straight))) == []


def test_a_failing_step_leaves_no_value_behind(tmp_path):
    failing = Outside(True)

    def values(learner):
        if learner.position.step == 1 and failing.value:
            learner.log("Largest score", 99.0)
            failing.value = False
            raise RuntimeError("broken")
        return 1.0

    learner = learner_in(tmp_path, values=values)
    with pytest.raises(RuntimeError, match="broken"):
        learner.fit()
    learner.step()
    assert learner.history["train", "Largest score"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3), r"a tensor of shape \(3,\).*\.mean\(\)"),
        (torch.ones((), dtype=torch.complex64), "complex64; log one real number"),
        ("much", r"log\('Largest score', ...\) was given a str"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, value, message):
    learner = learner_in(tmp_path, values=lambda learner: value)
    with pytest.raises(StepError, match=message):
        learner.step()


def test_the_name_of_a_registered_metric_and_one_that_leaves_the_directory_are_refused(tmp_path):
    learner = learner_in(tmp_path, values=lambda learner: learner.log("Loss", 1.0))
    with pytest.raises(StepError, match="there is a metric 'Loss' already"):
        learner.step()
    learner = learner_in(tmp_path, values=lambda learner: learner.log("../up", 1.0))
    with pytest.raises(StepError, match="up"):
        learner.step()


def test_outside_a_step_there_is_nothing_to_log_for(tmp_path):
    with pytest.raises(BusyError, match="called in one"):
        learner_in(tmp_path).log("Largest score", 1.0)

"""Which metrics a learner measures, by how they were registered."""

from __future__ import annotations

import matplotlib.text
import pytest
import torch.nn.functional as F
from builder_support import (
    SIZES,
    batches,
    classifier,
    files_in,
    net,
    sgd,
)

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.metric import (
    Accuracy,
    ConfusionMatrix,
    CudaMetric,
    LearningRate,
    Loss,
    Metric,
    TextMetric,
)


def test_a_training_metric_is_logged_for_training_alone(tmp_path):
    model = net()
    classifier(tmp_path).metric_train(Accuracy()).build(model, sgd(model)).fit(batches(), batches())
    assert files_in(tmp_path) == ["train/epoch-1/Accuracy.log"]


def test_a_validation_metric_is_logged_for_validation_alone(tmp_path):
    model = net()
    classifier(tmp_path).metric_valid(Accuracy()).build(model, sgd(model)).fit(batches(), batches())
    assert files_in(tmp_path) == ["valid/epoch-1/Accuracy.log"]


def test_metrics_are_those_of_both_splits(tmp_path):
    model = net()
    classifier(tmp_path).metrics(Loss(), Accuracy()).build(model, sgd(model)).fit(batches(), batches())
    assert files_in(tmp_path) == [
        f"{split}/epoch-1/{name}.log" for split in ("train", "valid") for name in ("Accuracy", "Loss")
    ]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_metrics_of_any_kind_are_narrowed_to_one_split(split, tmp_path):
    other = {"train": "valid", "valid": "train"}[split]
    model, kinds = net(), (Accuracy(), CudaMetric(), ConfusionMatrix())
    builder = classifier(tmp_path).metrics(Loss()).metrics(*kinds, **{other: False})
    learner = builder.build(model, sgd(model))
    learner.fit(batches(), batches())
    logged = {name for name in files_in(tmp_path) if not name.endswith("Loss.log")}
    assert {name.split("/")[0] for name in logged} == {split} and len(logged) == 3
    assert learner.history.metrics(other) == ("Loss",)
    assert learner.history.metrics(split)[:2] == ("Loss", "Accuracy")


def test_a_reading_has_a_curve_and_no_place_in_tables_of_epochs(tmp_path, capsys):
    model = net()
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).renderer("plain")
    learner = builder.metrics(Loss(), LearningRate()).build(model, sgd(model))
    learner.fit(batches(), batches())
    headings = next(line for line in capsys.readouterr().out.splitlines() if "Loss" in line)
    assert "Learning Rate" not in headings
    for summary in (learner.summary(), Artifacts(tmp_path).summary()):
        assert {row.metric for row in summary.rows} == {"Loss"}
    titles = {text.get_text() for text in learner.plot().findobj(matplotlib.text.Text)}
    assert "Learning Rate" in titles


def test_a_metric_of_ones_own_may_return_one_number(tmp_path):
    class Hits(Metric):
        name = "Hits"

        def update(self, item):
            return 100 * (item.output.argmax(1) == item.targets).float().mean()

    model = net()
    learner = classifier(tmp_path).metrics(Accuracy(), Hits()).build(model, sgd(model))
    learner.fit(batches(), batches()[:1])
    for split in ("train", "valid"):
        ours, theirs = (learner.history.epochs(name, split) for name in ("Hits", "Accuracy"))
        assert ours.tolist() == pytest.approx(theirs.tolist())


def test_without_a_word_about_metrics_the_loss_is_measured_on_both_splits(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert files_in(tmp_path) == ["train/epoch-1/Loss.log", "valid/epoch-1/Loss.log"]


def test_no_metric_at_all_can_be_asked_for(tmp_path):
    model = net()
    learner = classifier(tmp_path).metrics().build(model, sgd(model))
    learner.fit(batches(), batches())
    assert learner.status == "finished"
    assert files_in(tmp_path) == []


def words_in(figure):
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_only_metrics_registered_as_numeric_have_a_curve(tmp_path):
    model = net()
    builder = classifier(tmp_path).metric_train(Loss()).metric_valid(Loss())
    builder.metric_train_numeric(Accuracy()).metric_valid_numeric(Accuracy())
    learner = builder.build(model, sgd(model))
    learner.fit(batches(), batches())
    text = words_in(learner.plot())
    assert "Accuracy" in text
    assert "Loss" not in text
    assert len(learner.history["train", "Loss"]) == len(SIZES), "logged and kept all the same"


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_metric_may_have_its_curve_for_one_split_alone(split, tmp_path):
    model = net()
    builder = classifier(tmp_path)
    register = {"train": builder.metric_train_numeric, "valid": builder.metric_valid_numeric}[split]
    learner = register(Accuracy()).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert [info.split for info in learner.history.infos if info.plotted] == [split]
    assert "Accuracy" in words_in(learner.plot())


def test_a_text_metric_is_logged_as_lines_of_text(tmp_path):
    class Weather(TextMetric):
        name = "Weather"

        def text(self):
            return "sunny"

    model = net()
    classifier(tmp_path).metric_train(Weather()).build(model, sgd(model)).fit(batches())
    assert (tmp_path / "train/epoch-1/Weather.log").read_text() == "sunny\n" * len(SIZES)


def test_one_metric_object_registered_for_both_splits_keeps_them_apart(tmp_path):
    class Seen(Metric):
        """Accumulates by itself, so that a shared object would mix the splits."""

        name = "Seen"

        def __init__(self):
            self.samples = 0

        def update(self, item):
            self.samples += len(item.targets)
            return 0.0, 1

        def compute(self):
            return self.samples

    model = net()
    learner = classifier(tmp_path).metrics(Seen()).build(model, sgd(model))
    learner.fit(batches(), batches((5, 5)))
    assert learner.history.final("Seen", "train") == sum(SIZES)
    assert learner.history.final("Seen", "valid") == 10


def test_a_metric_object_used_by_an_earlier_learner_serves_a_new_one_too(tmp_path):
    accuracy = Accuracy()
    first, second = net(), net()
    one = classifier(tmp_path / "1").metrics(accuracy).build(first, sgd(first))
    one.fit(batches(), batches())
    other = classifier(tmp_path / "2").metrics(accuracy).build(second, sgd(second))
    other.fit(batches(), batches())
    one.fit(epochs=1)
    assert other.history["train", "Accuracy"].tolist() == one.history["train", "Accuracy", 1].tolist()
    assert len(one.history["train", "Accuracy"]) == 2 * len(SIZES)

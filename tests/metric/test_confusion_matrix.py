"""The confusion matrix: against scikit-learn, as a text among the metrics, and as a picture."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import binary_epoch, classes_epoch, generators, whole
from sklearn.metrics import confusion_matrix, recall_score

from notebook_learner.errors import OutputError, StateError
from notebook_learner.metric import Accuracy, ConfusionMatrix, MetricGroup


def only(answers, targets, classes=3):
    return SimpleNamespace(output=torch.eye(classes)[answers], targets=torch.tensor(targets))


def collected(metric, items):
    group = MetricGroup([metric])
    for item in items:
        group.collect(item)
    group.read()
    return metric


def test_it_agrees_with_scikit_learn():
    for seed, rng in generators():
        items = classes_epoch(seed, rng, torch.bfloat16 if seed % 4 == 3 else torch.float32)
        metric = collected(ConfusionMatrix(), items)
        output, targets = whole(items)
        labels = list(range(output.shape[1]))
        expected = confusion_matrix(targets, output.argmax(1), labels=labels)
        np.testing.assert_array_equal(metric.counts, expected)
        due = sorted(set(targets))
        recalls = recall_score(targets, output.argmax(1), labels=due, average=None, zero_division=0)
        shares = list(metric.per_class().values())
        assert [shares[label] for label in due] == pytest.approx((100 * recalls).tolist())
        assert all(np.isnan(shares[label]) for label in set(labels) - set(due))


def test_yes_and_no_agree_with_scikit_learn():
    for seed, rng in generators():
        items = binary_epoch(seed, rng)
        output, targets = whole(items)
        expected = confusion_matrix(targets, output > 0, labels=[0, 1])
        np.testing.assert_array_equal(collected(ConfusionMatrix(threshold=0.0), items).counts, expected)


def test_pads_are_left_out():
    metric = collected(ConfusionMatrix(pad_token=-100), [only([0, 1, 2], [0, 2, -100])])
    assert metric.counts.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_text_says_each_class_and_what_is_confused_most():
    metric = collected(ConfusionMatrix(["cat", "dog", "owl"]), [only([0, 1, 1, 1, 2], [0, 0, 0, 1, 1])])
    assert metric.text() == "cat 33.33 %, dog 50 %; most confused: cat for dog (2), dog for owl (1)"
    assert repr(metric) == "<Confusion Matrix: 5 answers of 3 classes, 40 % right>"
    metric.reset()
    assert metric.text() == "no answers yet"
    assert metric.counts.shape == (0, 0)


def test_of_many_classes_the_text_names_the_worst():
    answers, targets = list(range(20)), list(range(20))
    answers[7] = 3
    metric = collected(ConfusionMatrix(), [only(answers, targets, 20)])
    assert metric.text().startswith("worst of 20: 7 0 %, 0 100 %, 1 100 %")
    assert metric.text().endswith("; most confused: 7 for 3 (1)")


def test_the_picture_shows_counts_and_names():
    metric = collected(ConfusionMatrix(["$cat$", "<b>dog", "owl"]), [only([0, 1, 1], [0, 0, 1])])
    figure = metric.figure(dark=True)
    (ax,) = figure.axes
    assert sorted(text.get_text() for text in ax.texts) == ["1", "1", "1"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["$cat$", "<b>dog", "owl"]
    assert ax.get_title(loc="left") == "Confusion Matrix: 66.67 % of 3"
    np.testing.assert_allclose(ax.images[0].get_array(), [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0]])
    png, _ = metric._repr_png_()
    assert png.startswith(b"\x89PNG")


def test_without_answers_there_is_no_picture_but_a_figure_says_so():
    assert ConfusionMatrix()._repr_png_() is None
    assert "nothing counted yet" in [text.get_text() for text in ConfusionMatrix().figure().texts]


def test_many_classes_fit_a_picture():
    (ax,) = collected(ConfusionMatrix(), [only([0], [1], 200)]).figure().axes
    assert len(ax.texts) == 0
    assert max(ax.figure.get_size_inches()) < 12


def test_labels_that_are_not_those_of_the_output_are_refused():
    with pytest.raises(OutputError, match="has 2 labels, but the output has 3 classes"):
        collected(ConfusionMatrix(["cat", "dog"]), [only([0], [1])])


def test_a_text_that_fails_says_so_in_its_own_words():
    class Broken(ConfusionMatrix):
        def update(self, item):
            raise TypeError("my own mistake")

    with pytest.raises(TypeError, match="my own mistake"):
        collected(Broken(), [only([0], [1])])
    group = MetricGroup([Accuracy(), ConfusionMatrix()])
    group.collect(only([0], [1]))
    with pytest.raises(OutputError, match="saw 3 classes"):
        group.collect(only([0], [1], 2))
    assert group.pending == 1


@pytest.mark.parametrize("matrix", [torch.ones(2, 2), torch.ones(2, 3, dtype=torch.int64), [[1]]])
def test_a_state_that_is_none_is_refused(matrix):
    with pytest.raises(StateError, match="no matrix of counts"):
        ConfusionMatrix().load_state_dict({"matrix": matrix})


def test_counting_loads_no_matplotlib():
    code = (
        "import sys, torch; from types import SimpleNamespace as I\n"
        "from notebook_learner.metric import ConfusionMatrix\n"
        "c = ConfusionMatrix(); c.update(I(output=torch.eye(2), targets=torch.arange(2))); c.text()\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

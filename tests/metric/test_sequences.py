"""Metrics of sequences: what they take, when they read it, and what they say of what they cannot take."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import pytest
import torch

from notebook_learner import SequenceOutput
from notebook_learner.errors import OutputError, StateError, StepError
from notebook_learner.metric import (
    BleuScore,
    CharErrorRate,
    MetricGroup,
    Prediction,
    RougeLScore,
    WordErrorRate,
)


def item(predictions, targets, **more):
    return SimpleNamespace(predictions=predictions, targets=targets, **more)


def final(metric, *items):
    group = MetricGroup([metric])
    for each in items:
        group.collect(each)
    group.read()
    return group.finals()[metric.name]


def letters(tokens):
    return "".join(chr(96 + token) for token in tokens)


def test_tokens_without_decode_count_one_each():
    step = item(torch.tensor([[1, 2], [3, 5]]), torch.tensor([[1, 3], [3, 4]]))
    assert final(CharErrorRate(), step) == final(WordErrorRate(), step) == 50.0


def test_padding_is_left_out_on_both_sides():
    step = item(torch.tensor([[1, 2, 9], [9, 3, 5]]), torch.tensor([[1, 3, 9], [3, 4, 9]]))
    assert final(CharErrorRate(pad_token=9), step) == 50.0


def test_the_output_says_itself_what_is_padding():
    step = item(torch.tensor([[1, 2]]), torch.tensor([[1, -100]]), ignore_index=-100)
    assert final(CharErrorRate(), step) == 100.0  # the 2 is one too many
    step.predictions = torch.tensor([[1, -100]])
    assert final(CharErrorRate(), step) == 0.0


def test_without_predictions_the_best_scored_tokens_count_where_a_target_is():
    targets = torch.tensor([[1, 2, -100], [3, -100, -100]])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 0, 3], [3, 2, 1]]), 4).float()
    step = SequenceOutput(torch.tensor(1.0), logits, targets)
    assert final(CharErrorRate(), step) == pytest.approx(100 / 3)


def test_decode_makes_characters_and_words():
    step = item(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]]))
    assert final(CharErrorRate(letters), step) == pytest.approx(100 / 3)
    assert final(WordErrorRate(letters), step) == 100.0
    assert final(WordErrorRate(SimpleNamespace(decode=letters)), step) == 100.0


def test_lists_of_tokens_need_no_equal_length():
    assert final(WordErrorRate(), item([[1, 2, 3], [4]], [[1, 2], []])) == 100.0


def test_one_sequence_without_a_batch_is_one_sequence():
    step = item(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert final(RougeLScore(), step) == 50.0
    assert final(CharErrorRate(), item("cat", "car")) == pytest.approx(100 / 3)


def test_what_a_loader_fills_again_is_what_it_was():
    targets = torch.tensor([[1, 2]])
    group = MetricGroup([CharErrorRate()])
    group.collect(item(torch.tensor([[1, 2]]), targets))
    targets.fill_(7)
    assert group.read()[0]["CER"].values.tolist() == [0.0]


def test_each_weighs_by_what_it_counts():
    step = item(["a bc", "d"], ["a bd", "e f"])
    metrics = [CharErrorRate(), WordErrorRate(), BleuScore(), RougeLScore()]
    group = MetricGroup(metrics)
    group.collect(step)
    columns, _ = group.read()
    assert {name: column.weights.tolist() for name, column in columns.items()} == {
        "CER": [7.0], "WER": [4.0], "BLEU-4": [4.0], "ROUGE-L": [2.0],
    }  # fmt: skip


@pytest.mark.parametrize("kind", [CharErrorRate, WordErrorRate, BleuScore, RougeLScore])
def test_an_epoch_that_was_captured_goes_on_as_if_nothing_had_been(kind):
    source = torch.Generator().manual_seed(0)
    steps = [item(*torch.randint(1, 5, (2, 3, 9), generator=source).unbind()) for _ in range(6)]
    straight = final(kind(), *steps)
    first = MetricGroup([kind()])
    for step in steps[:4]:
        first.collect(step)
        first.read()
    state = copy.deepcopy(first.state_dict())
    second = MetricGroup([kind()])
    second.load_state_dict(state)
    for step in steps[4:]:
        second.collect(step)
    second.read()
    assert list(second.finals().values()) == [straight]
    second.reset()
    assert second.finals()[second.metrics[0].name] != second.finals()[second.metrics[0].name]


def test_a_decode_that_fails_takes_no_step_with_it():
    def decode(tokens):
        if broken:
            raise KeyError(3)
        return letters(tokens)

    broken = True
    group = MetricGroup([WordErrorRate(), CharErrorRate(decode)])
    group.collect(item(torch.tensor([[1, 2]]), torch.tensor([[1, 3]])))
    with pytest.raises(KeyError):
        group.read()
    broken = False
    group.read()
    assert group.finals() == {"WER": 50.0, "CER": 50.0}


def test_steps_that_are_taken_back_are_not_counted():
    group = MetricGroup([CharErrorRate()])
    for prediction in ([[1, 2]], [[3, 4]]):
        group.collect(item(torch.tensor(prediction), torch.tensor([[1, 2]])))
    group.keep(1)
    assert group.read()[0]["CER"].values.tolist() == [0.0]


def test_a_step_of_no_sequence_has_no_value():
    empty = torch.zeros(0, 4, dtype=torch.long)
    group = MetricGroup([CharErrorRate(), BleuScore(), RougeLScore()])
    group.collect(item(empty, empty))
    group.collect(item(torch.tensor([[1]]), torch.tensor([[1]])))
    columns, _ = group.read()
    assert columns["CER"].values.tolist() == pytest.approx([float("nan"), 0.0], nan_ok=True)
    assert [column.weights.tolist() for column in columns.values()] == [[0.0, 1.0]] * 3
    assert group.finals() == {"CER": 0.0, "BLEU-4": 0.0, "ROUGE-L": 100.0}


TOKENS = torch.tensor([[1, 2]])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (item(torch.ones(1, 2, 5), TOKENS), r"CER got `predictions` of shape \[1, 2, 5\].*scores go into"),
        (item(torch.ones(1, 2), TOKENS), r"`predictions` of shape \[1, 2\] and torch.float32"),
        (item(TOKENS, 5), "CER got `targets` of type int; give token numbers"),
        (item(None, TOKENS), "CER got `predictions` of None, and no `logits`"),
        (item(torch.ones(3, 2).long(), TOKENS), "CER got 3 predictions for 1 targets"),
        (SimpleNamespace(targets=TOKENS), "CER needs `predictions`.*SequenceOutput has .*`predictions`"),
    ],
)
def test_what_cannot_be_compared_is_said_at_the_first_step(step, said):
    with pytest.raises(OutputError, match=said):
        MetricGroup([CharErrorRate()]).collect(step)


def test_what_decode_must_be_and_must_return_is_said():
    with pytest.raises(TypeError, match=r"CharErrorRate\(decode=3\): give a function from a list of token"):
        CharErrorRate(3)
    group = MetricGroup([CharErrorRate(lambda tokens: tokens)])
    group.collect(item(TOKENS, TOKENS))
    with pytest.raises(StepError, match="CharErrorRate: decode returned a list for a list of 2 tokens"):
        group.read()


@pytest.mark.parametrize("wrong", [{"max_n": 0}, {"max_n": 1.5}, {"smoothing": "floor"}, {"smoothing": 0}])
def test_bleu_names_what_it_can_do(wrong):
    with pytest.raises(ValueError, match="BleuScore"):
        BleuScore(**wrong)


@pytest.mark.parametrize("kind", [CharErrorRate, WordErrorRate, RougeLScore])
def test_without_rapidfuzz_the_way_to_get_it_is_said_where_the_metric_is_made(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance", None)
    with pytest.raises(ImportError, match=r"pip install 'notebook_learner\[text\]'"):
        kind()


def test_a_state_of_other_metrics_is_refused():
    with pytest.raises(StateError):
        MetricGroup([CharErrorRate()]).load_state_dict(MetricGroup([WordErrorRate()]).state_dict())


# Prediction ----------------------------------------------------------------------------------------------


def shown(metric, step):
    metric.context = SimpleNamespace(output=step)
    return metric.text()


def test_a_sample_is_shown_beside_its_target():
    step = item(torch.tensor([[1, 2, 0], [3, 0, 0]]), torch.tensor([[1, 3, 0], [3, 3, 0]]))
    assert shown(Prediction(letters, pad_token=0), step) == "ab (target: ac)"
    assert shown(Prediction(letters, pad_token=0, row=7), step) == "c (target: cc)"
    assert shown(Prediction(), step) == "1 2 0 (target: 1 3 0)"
    swapped = Prediction(input=lambda item: (item.targets, item.predictions))
    assert shown(swapped, step) == "1 3 0 (target: 1 2 0)"


def test_a_long_sample_is_one_short_line():
    text = shown(Prediction(), item(["two\nlines\x85 here " + "x" * 500], ["y"]))
    assert text.startswith("two lines here xxx")
    assert len(text) < 150
    assert text.endswith("… (target: y)")


def test_without_an_output_the_last_sample_stays():
    sample = Prediction()
    assert shown(sample, None) == ""
    shown(sample, item(["a"], ["b"]))
    assert shown(sample, None) == shown(sample, item([], [])) == "a (target: b)"


def test_a_sample_needs_the_fields_from_the_first_step():
    with pytest.raises(OutputError, match="Prediction needs `predictions` and `targets`"):
        MetricGroup([Prediction()]).collect(SimpleNamespace(loss=1))

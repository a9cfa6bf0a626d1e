"""Scores of texts equal those of the libraries that people report them by."""

from __future__ import annotations

import random
from types import SimpleNamespace

import jiwer
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from notebook_learner.metric import BleuScore, CharErrorRate, RougeLScore, WordErrorRate

CASES = 200
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "café",
    "naïve",
    "日本",
    "語",
    "🙂",
    "ﬁ",
    "e\u0301",
    "x",
    "42",
]
PAD = 0


def texts(random, count, empty=0.1):
    """Random texts; a tenth have no word at all."""
    return [
        "" if random.random() < empty else " ".join(random.choices(WORDS, k=random.randint(1, 12)))
        for _ in range(count)
    ]


def damaged(random, text):
    """A prediction that has something of its target."""
    words = [word for word in text.split() if random.random() > 0.2]
    if words and random.random() < 0.5:
        words.insert(random.randrange(len(words)), random.choice(WORDS))
    return " ".join(words)


def epoch(seed):
    """Steps of texts, the last of a single sample; predictions are near the targets."""
    source = random.Random(seed)
    sizes = [source.randint(1, 4) for _ in range(source.randint(1, 3))] + [1]
    targets = [texts(source, size) for size in sizes]
    return [SimpleNamespace(predictions=[damaged(source, t) for t in ts], targets=ts) for ts in targets]


def everything(items):
    return [t for item in items for t in item.predictions], [t for item in items for t in item.targets]


def encoded(items):
    """The same as padded token numbers, and the function that reads them."""
    numbers = {word: number for number, word in enumerate(WORDS, start=1)}

    def tensor(rows):
        tokens = [[numbers[word] for word in row.split()] for row in rows]
        longest = max(map(len, tokens))
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in tokens], dtype=torch.long)

    steps = [
        SimpleNamespace(predictions=tensor(item.predictions), targets=tensor(item.targets)) for item in items
    ]
    return steps, lambda tokens: " ".join(WORDS[token - 1] for token in tokens)


@pytest.mark.parametrize(("kind", "oracle"), [(CharErrorRate, jiwer.cer), (WordErrorRate, jiwer.wer)])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_error_rates_are_those_of_jiwer(kind, oracle, as_tokens, measure):
    scored = 0
    for seed in range(CASES):
        items = epoch(seed)
        predictions, targets = everything(items)
        steps, decode = encoded(items) if as_tokens else (items, None)
        metric = kind(decode, pad_token=PAD)
        columns, finals = measure([metric], steps, cuts={1})
        if not any(targets):
            assert finals[metric.name] != finals[metric.name]
            continue
        assert finals[metric.name] == pytest.approx(100 * oracle(targets, predictions))
        for value, item in zip(columns[metric.name], items, strict=True):
            if any(item.targets):
                assert value == pytest.approx(100 * oracle(item.targets, item.predictions))
            else:
                assert value != value
        scored += 1
    assert scored > 0.9 * CASES


@pytest.mark.parametrize(
    ("smoothing", "method"),
    [(None, {"smooth_method": "none"}), ("exponential", {"smooth_method": "exp"}),
     (0.1, {"smooth_method": "floor", "smooth_value": 0.1})],
)  # fmt: skip
@pytest.mark.parametrize("max_n", [1, 2, 4])
def test_bleu_is_that_of_sacrebleu(smoothing, method, max_n, measure):
    oracle = BLEU(tokenize="none", force=True, max_ngram_order=max_n, **method)
    above = 0
    for seed in range(CASES):
        items = epoch(seed)
        predictions, targets = everything(items)
        if not any(predictions) and not any(targets):
            continue
        metric = BleuScore(max_n=max_n, smoothing=smoothing)
        columns, finals = measure([metric], items, cuts={1})
        expected = oracle.corpus_score(predictions, [targets]).score
        assert finals[metric.name] == pytest.approx(expected, abs=1e-9), (predictions, targets)
        for value, item in zip(columns[metric.name], items, strict=True):
            if any(item.predictions) or any(item.targets):
                one = oracle.corpus_score(item.predictions, [item.targets]).score
                assert value == pytest.approx(one, abs=1e-9)
            else:
                assert value != value
        above += expected > 0
    assert above > CASES / 2


class Words:
    def tokenize(self, text):
        return text.split()


def test_rouge_l_is_that_of_rouge_score(measure):
    oracle = RougeScorer(["rougeL"], tokenizer=Words())

    def f1(prediction, target):
        # Both empty: nothing was missed and nothing invented, which rouge-score calls 0 and Burn 100.
        return 100 * oracle.score(target, prediction)["rougeL"].fmeasure if prediction or target else 100.0

    for seed in range(CASES):
        items = epoch(seed)
        expected = [[f1(*pair) for pair in zip(i.predictions, i.targets, strict=True)] for i in items]
        columns, finals = measure([RougeLScore()], items, cuts={1})
        assert columns["ROUGE-L"] == pytest.approx([sum(step) / len(step) for step in expected])
        flat = [value for step in expected for value in step]
        assert finals["ROUGE-L"] == pytest.approx(sum(flat) / len(flat))


def test_the_mean_of_batches_would_be_another_number(measure):
    """The negative control of all of the above: epochs are no means of their steps."""
    items = [
        SimpleNamespace(predictions=["a b c d"], targets=["a b c d"]),
        SimpleNamespace(predictions=["a b c x y a b c d e"], targets=["a b c d e f a b c d"]),
    ]
    metrics = [CharErrorRate(), WordErrorRate(), BleuScore(max_n=2)]
    columns, finals = measure(metrics, items)
    for metric in metrics:
        assert finals[metric.name] != pytest.approx(columns[metric.name].mean(), rel=0.01)

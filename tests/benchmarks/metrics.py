"""What metrics cost: Loss and Accuracy beside the same computed by hand, metrics of classes and of sequences,
and `evaluate` beside a loop.

All in one process, in turn, as CPU time of one thread; medians over rounds of the difference within a
round, since the machine's speed drifts.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import evaluating
import torch
import torch.nn.functional as F

from notebook_learner import ClassificationOutput
from notebook_learner.metric import (
    Accuracy,
    BleuScore,
    CharErrorRate,
    ConfusionMatrix,
    Dice,
    FBetaScore,
    HammingScore,
    Loss,
    Metric,
    MetricGroup,
    Perplexity,
    Precision,
    RougeLScore,
    WordErrorRate,
)

STEPS = 4000
BLOCK = 160
"""Steps between two reads: a tenth of a second of the benchmark's training loop."""
BATCH, CLASSES = 32, 10
SEQUENCES, TOKENS, VOCABULARY = 32, 100, 1000


def cpu_us(work: Callable[[], object], count: int) -> float:
    """CPU microseconds a step."""
    before = time.process_time()
    work()
    return (time.process_time() - before) / count * 1e6


def medians(work: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, list[float]]:
    """Every candidate once a round, in turn, after a round that does not count."""
    for each in work.values():
        each()
    return {
        name: list(times)
        for name, times in zip(
            work,
            zip(*[[cpu_us(each, count) for each in work.values()] for _ in range(rounds)], strict=True),
            strict=True,
        )
    }


# Loss and Accuracy -------------------------------------------------------------------------------------


def classified() -> list[ClassificationOutput]:
    """Outputs of steps, made before anything is measured."""
    source = torch.Generator().manual_seed(0)
    outputs = []
    for _ in range(BLOCK):
        scores = torch.randn(BATCH, CLASSES, generator=source, requires_grad=True)
        targets = torch.randint(CLASSES, (BATCH,), generator=source)
        outputs.append(ClassificationOutput(F.cross_entropy(scores, targets), scores, targets))
    return outputs


def by_hand(outputs: list[ClassificationOutput]) -> tuple[float, float]:
    """A sensible loop's epoch: sums stay tensors, and are read at its end."""
    total, right, seen = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
    for step in range(STEPS):
        output = outputs[step % BLOCK]
        total += output.loss.detach() * len(output.targets)
        right += (output.output.argmax(1) == output.targets).sum()
        seen += len(output.targets)
    return total.item() / seen, 100 * right.item() / seen


def by_group(outputs: list[ClassificationOutput], metrics: list[Metric]) -> dict[str, float]:
    """The same by the metrics, with a value of every step besides."""
    group = MetricGroup(metrics)
    group.attach(SimpleNamespace(samples=BATCH))  # type: ignore[arg-type]
    for step in range(STEPS):
        group.collect(outputs[step % BLOCK])
        if (step + 1) % BLOCK == 0:
            group.read()
    group.read()
    return group.finals()


def the_pair(rounds: int) -> None:
    outputs = classified()
    loss, accuracy = by_hand(outputs)
    finals = by_group(outputs, [Loss(), Accuracy()])
    assert abs(finals["Loss"] - loss) < 1e-3 and finals["Accuracy"] == accuracy, "unequal work"
    times = medians(
        {
            "by hand": lambda: by_hand(outputs),
            "no metric": lambda: by_group(outputs, []),
            "Loss": lambda: by_group(outputs, [Loss()]),
            "Loss and Accuracy": lambda: by_group(outputs, [Loss(), Accuracy()]),
            "with input=": lambda: by_group(
                outputs, [Loss(), Accuracy(input=lambda item: (item.output, item.targets))]
            ),
        },
        STEPS,
        rounds,
    )
    print(f"us CPU a step, batch {BATCH}, {CLASSES} classes, read every {BLOCK} steps")
    for name, each in times.items():
        more = statistics.median(a - b for a, b in zip(each, times["by hand"], strict=True))
        print(f"{name:>20}{statistics.median(each):>9.2f}   {more:+.2f} to by hand")


# Metrics of classes ------------------------------------------------------------------------------------


def labelled(outputs: list[ClassificationOutput]) -> list[Any]:
    """The same scores as those of ten labels."""
    scores = [output.output.detach() for output in outputs]
    return [SimpleNamespace(output=each, targets=(each > 0.5).long()) for each in scores]


def the_classes(rounds: int) -> None:
    outputs = classified()
    labels = labelled(outputs)
    made: dict[str, tuple[list[Any], Callable[[], Any]]] = {
        "no metric": (outputs, lambda: []),
        "Accuracy": (outputs, lambda: [Accuracy()]),
        "Precision": (outputs, lambda: [Precision()]),
        "Precision, micro": (outputs, lambda: [Precision(None, "micro")]),
        "Precision, 2 best": (outputs, lambda: [Precision.multiclass(2)]),
        "Precision, pads": (outputs, lambda: [Precision.multiclass(pad_token=-100)]),
        "FBetaScore": (outputs, lambda: [FBetaScore()]),
        "Dice": (outputs, lambda: [Dice()]),
        "ConfusionMatrix": (outputs, lambda: [ConfusionMatrix()]),
        "Precision, labels": (labels, lambda: [Precision.multilabel(0.0)]),
        "Precision, yes or no": (labels, lambda: [Precision.binary(0.0)]),
        "HammingScore": (labels, lambda: [HammingScore(0.0)]),
    }
    work: dict[str, Callable[[], object]] = {
        name: (lambda items=items, make=make: by_group(items, make()))  # type: ignore[misc]
        for name, (items, make) in made.items()
    }
    times = medians(work, STEPS, rounds)
    print(f"us CPU a step of one metric of classes, batch {BATCH}, {CLASSES} classes; median and least")
    for name, each in times.items():
        print(f"{name:>22}{statistics.median(each):>9.2f}{min(each):>9.2f}")


# Sequences ---------------------------------------------------------------------------------------------


def sequences(steps: int) -> list[Any]:
    """Predictions that are right at nine tokens of ten."""
    source = torch.Generator().manual_seed(0)
    items = []
    for _ in range(steps):
        targets = torch.randint(1, VOCABULARY, (SEQUENCES, TOKENS), generator=source)
        wrong = torch.rand(SEQUENCES, TOKENS, generator=source) < 0.1
        predictions = torch.where(wrong, targets.roll(1, 1), targets)
        output = torch.randn(SEQUENCES, TOKENS, VOCABULARY, generator=source).movedim(-1, 1)
        items.append(SimpleNamespace(predictions=predictions, targets=targets, output=output))
    return items


def words(tokens: list[int]) -> str:
    """As cheap as a decode can be: what a real tokenizer takes comes on top."""
    return " ".join(map(str, tokens))


def of_sequences(items: list[Any], metric: Metric) -> tuple[float, float]:
    """CPU microseconds a step in the steps, and at the read of all of them."""
    group = MetricGroup([metric])
    in_steps = cpu_us(lambda: [group.collect(item) for item in items], len(items))
    return in_steps, cpu_us(group.read, len(items))


def the_sequences(rounds: int) -> None:
    items = sequences(8)
    kinds: dict[str, Callable[[], Metric]] = {
        "CER of tokens": CharErrorRate,
        "CER of texts": lambda: CharErrorRate(words),
        "WER of texts": lambda: WordErrorRate(words),
        "BLEU-4 of tokens": BleuScore,
        "ROUGE-L of tokens": RougeLScore,
        "Perplexity": Perplexity,
    }
    print(f"us CPU a step of {SEQUENCES} sequences of {TOKENS} tokens; in the step, and in the block's read")
    for name, make in kinds.items():
        times = [of_sequences(items, make()) for _ in range(rounds + 1)][1:]
        in_step, at_read = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{name:>20}{in_step:>9.1f}{at_read:>9.1f}")
    distances(rounds)


def distances(rounds: int) -> None:
    """Two ways to an edit distance, for one pair of sequences of 100 tokens."""
    from rapidfuzz.distance import Levenshtein
    from torchmetrics.functional.text.helper import _edit_distance

    source = random.Random(0)
    pairs = [[source.choices(range(VOCABULARY), k=TOKENS) for _ in range(2)] for _ in range(20)]
    times = medians(
        {
            "rapidfuzz": lambda: [Levenshtein.distance(*pair) for pair in pairs],
            "torchmetrics": lambda: [_edit_distance(*pair) for pair in pairs],
        },
        len(pairs),
        rounds,
    )
    print(f"us CPU an edit distance of two sequences of {TOKENS} tokens")
    for name, each in times.items():
        print(f"{name:>20}{statistics.median(each):>11.1f}")


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, one thread; {rounds} rounds")
    the_pair(rounds)
    the_classes(rounds)
    evaluating.main(rounds)
    the_sequences(rounds)


if __name__ == "__main__":
    main(9)

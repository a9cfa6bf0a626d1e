"""What `evaluate` costs beside a loop written by hand, without gradients and with the same metrics: CPU
time of one thread, both in one process, in turn, over the same batches."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.learner.learner import Learner
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Accuracy, Loss

BATCHES, BATCH = 1000, 32
Batches = list[tuple[Tensor, Tensor]]


def net() -> nn.Module:
    torch.manual_seed(0)
    first, second, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def data() -> Batches:
    torch.manual_seed(1)
    return [(torch.randn(BATCH, 64), torch.randint(10, (BATCH,))) for _ in range(BATCHES)]


def by_hand(model: nn.Module, batches: Batches) -> dict[str, float]:
    """As one would write it: sums stay tensors and are read at the end."""
    model.eval()
    total, right, seen = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
    with torch.no_grad():
        for x, y in batches:
            output = model(x)
            total += F.cross_entropy(output, y) * len(y)
            right += (output.argmax(1) == y).sum()
            seen += len(y)
    model.train()
    return {"Loss": total.item() / seen, "Accuracy": 100 * right.item() / seen}


def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> ClassificationOutput:
    x, y = batch
    output = model(x)
    return ClassificationOutput(F.cross_entropy(output, y), output, y)


def learner_of(model: nn.Module, directory: str | None) -> Learner:
    """One that writes logs and artifacts.h5, or one that keeps all in memory."""
    builder = LearnerBuilder(directory or "unused").metrics(Loss(), Accuracy()).renderer("silent")
    builder.train_step(step).valid_step(step)
    if directory is None:
        builder.metric_logger(InMemoryMetricLogger()).with_application_logger(False)
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))


def cpu_us(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return (time.process_time() - before) / BATCHES * 1e6


def compare(rounds: int, directory: str) -> None:
    model, batches = net(), data()
    bare, logged = learner_of(model, None), learner_of(model, directory)
    expected, found = by_hand(model, batches), dict(bare.evaluate(batches))
    assert found["Accuracy"] == expected["Accuracy"] and abs(found["Loss"] - expected["Loss"]) < 1e-3
    work: dict[str, Callable[[], object]] = {
        "by hand": lambda: by_hand(model, batches),
        "evaluate": lambda: bare.evaluate(batches),
        "evaluate, with files": lambda: logged.evaluate(batches),
    }
    for each in work.values():
        each()
    times = [{name: cpu_us(each) for name, each in work.items()} for _ in range(rounds)]
    print(f"us CPU a batch of {BATCH}, MLP 64-128-128-10, {BATCHES} batches, Loss and Accuracy")
    for name in work:
        mine = [each[name] for each in times]
        more = statistics.median(each[name] - each["by hand"] for each in times)
        ratio = statistics.median(each[name] / each["by hand"] for each in times)
        print(f"{name:>22}{statistics.median(mine):>9.1f}{min(mine):>9.1f}  {more:+.1f}  {ratio:.3f}")


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        compare(rounds, directory)

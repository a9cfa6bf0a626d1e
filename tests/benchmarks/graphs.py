"""G1 to G3, a tiny MLP, a convnet and a transformer on a GPU: a loop by hand, eager and compiled with CUDA
graphs, and the Learner, eager and with `.graph()`, in turn within one process. Wall time counts, since it is
the device that is waited for. G4 is in data_bound.py."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, Loss

DEVICE = "cuda:0"
STEPS = 200


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), (32, 64)


def convnet() -> tuple[nn.Module, tuple[int, ...]]:
    def block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inner, outer, 3, 2, 1), nn.BatchNorm2d(outer), nn.ReLU())

    layers = [block(3, 32), block(32, 64), block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(128, 10)), (64, 3, 32, 32)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x).mean(1))
        return out


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "G1 tiny MLP": mlp,
    "G2 convnet": convnet,
    "G3 transformer": lambda: (Transformer(), (16, 64, 128)),
}


Make = Callable[[], tuple[nn.Module, tuple[int, ...]]]
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
Configure = Callable[[LearnerBuilder], Any]


def there(shape: tuple[int, ...], device: str) -> Batches:
    """A round of batches that are on the device already."""
    return [(torch.randn(shape, device=device), torch.randint(0, 10, shape[:1], device=device))] * STEPS


def by_hand(
    make: Make, mode: str | None, data: Batches | None = None, device: str = DEVICE
) -> Callable[[], float]:
    """A sensible loop, whose loss is read once a round."""
    torch.manual_seed(0)
    model, shape = make()
    model.to(device)
    batches = there(shape, device) if data is None else data
    optimizer = torch.optim.Adam(model.parameters(), capturable=mode is not None and device != "cpu")
    forward = model if mode is None else torch.compile(model, mode=mode)

    def go() -> float:
        losses, hits = [], []
        for x, y in batches:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            output = forward(x)
            loss = F.cross_entropy(output, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
            hits.append((output.argmax(1) == y).sum())
        torch.stack(hits).cpu()
        return float(torch.stack(losses).cpu()[-1])

    return go


def learner(make: Make, configure: Configure, data: Batches | None = None, device: str = DEVICE) -> Learner:
    torch.manual_seed(0)
    model, shape = make()
    builder = (
        LearnerBuilder(tempfile.mkdtemp())
        .loss(F.cross_entropy)
        .metrics(Loss(), Accuracy())
        .devices([device])
        .num_epochs(10**6)
        .renderer("silent")
        .with_application_logger(False)
        .remote_control(False)
    )
    configure(builder)
    batches = there(shape, device) if data is None else data
    return builder.build(model, lambda p: torch.optim.Adam(p), None, batches)


def epochs_of(learner: Learner) -> Callable[[], float]:
    """A round of it, whose loss is read."""

    def go() -> float:
        learner.step_epoch()
        return float(learner.history["train", "Loss"][-1])

    return go


def seconds(go: Callable[[], float], device: str = DEVICE) -> float:
    """What a step takes, until the device has done all of a round."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    wait()
    started = time.perf_counter()
    go()
    wait()
    return (time.perf_counter() - started) / STEPS


def main(rounds: int) -> None:
    """Print milliseconds a step of each, and what that is of the eager loop by hand."""
    if not torch.cuda.is_available():
        raise SystemExit("graphs: this measures a GPU, and torch sees none here")
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {rounds} rounds of {STEPS} steps in turn"
    )
    for name, make in MODELS.items():
        runs = {
            "by hand": by_hand(make, None),
            "by hand, compiled with graphs": by_hand(make, "reduce-overhead"),
            "learner": epochs_of(learner(make, lambda builder: None)),
            "learner with graph()": epochs_of(learner(make, lambda builder: builder.graph())),
        }
        times: dict[str, list[float]] = {who: [] for who in runs}
        for turn in range(rounds + 2):  # two to compile, and to choose algorithms
            for who, go in runs.items():
                taken = seconds(go)
                if turn >= 2:
                    times[who].append(taken)
        print(name)
        for who, each in times.items():
            pairs = zip(each, times["by hand"], strict=True)
            ratio = statistics.median(mine / plain for mine, plain in pairs)
            print(f"  {who:32} {statistics.median(each) * 1e3:8.3f} ms a step, {ratio:.3f} of by hand, eager")

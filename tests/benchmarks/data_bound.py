"""G4, a GPU that waits for its data: the convnet of G2 with samples that worker processes decode, so many
times over that a batch takes them as long as the device needs for an eager step, or longer. By hand and by
the Learner; eager, compiled and with `.graph()`; with the loader's own settings, and with pinned memory and
more batches ahead.

Beside the time of a step: how long the loop stood waiting for a batch, by one clock for all, and what
`inspect("next")` says of the batch to come. That is the first of a loader that begins anew, with the start
of its workers.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import graphs
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from notebook_learner import Learner

WORKERS = 4
SIDE = 32
LOADERS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "pinned, 8 ahead": {"pin_memory": True, "prefetch_factor": 8},
}
LEARNERS: dict[str, graphs.Configure] = {
    "learner": lambda builder: None,
    "learner, compiled": lambda builder: builder.compile(),
    "learner with graph()": lambda builder: builder.graph(),
    "learner, compiled, with graph()": lambda builder: builder.compile().graph(),
}


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Deflated pictures, each inflated `work` times."""

    def __init__(self, count: int, work: int) -> None:
        pixels = np.random.default_rng(0).integers(0, 64, (64, SIDE, SIDE, 3), dtype=np.uint8)
        self.packed = [zlib.compress(each.tobytes()) for each in pixels]
        self.count, self.work = count, work

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        for _ in range(self.work):
            raw = np.frombuffer(zlib.decompress(self.packed[at % 64]), np.uint8).reshape(SIDE, SIDE, 3)
            picture = (raw.astype(np.float32) / 255 - 0.5).transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(picture)), at % 10


def work_for(step: float, batch: int) -> int:
    """How often each sample is decoded, so that workers take as long for a batch as the device for a step."""
    pictures = Pictures(batch, 1)
    started = time.perf_counter()
    for at in range(batch):
        pictures[at]
    return max(1, -(-int(step * WORKERS * 1e9) // int((time.perf_counter() - started) * 1e9)))


@contextmanager
def waits() -> Iterator[list[float]]:
    """How long each batch was waited for, in any of the loops."""
    usual, found = _BaseDataLoaderIter.__next__, list[float]()

    def timed(self: Any) -> Any:
        started = time.perf_counter()
        try:
            return usual(self)
        finally:
            found.append(time.perf_counter() - started)

    _BaseDataLoaderIter.__next__ = timed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        _BaseDataLoaderIter.__next__ = usual  # type: ignore[method-assign]


def main(rounds: int, *, dry: bool = False) -> None:
    """Print milliseconds a step of each, what that is of the eager loop by hand, and how long it waited."""
    if not (dry or torch.cuda.is_available()):
        raise SystemExit("data: this measures a GPU, and torch sees none here; --dry shows that it runs")
    device = "cpu" if dry else graphs.DEVICE
    rounds, warm = (1, 0) if dry else (rounds, 2)
    graphs.STEPS = 8 if dry else graphs.STEPS
    batch = graphs.convnet()[1][0]
    step = _step_alone(device)
    work = work_for(step, batch)
    where = "dry: no figure counts" if dry else torch.cuda.get_device_name()
    print(f"G4 data-bound convnet; torch {torch.__version__}, {where}")
    print(f"{rounds} rounds of {graphs.STEPS} steps in turn")
    print(f"a step alone {step * 1e3:.3f} ms; {WORKERS} workers decode each of {batch} samples {work} times")
    pictures = Pictures(batch * graphs.STEPS, work)
    for name, options in LOADERS.items():
        # Each trains from a loader of its own, whose workers stay: no round begins with their start.
        make = partial(DataLoader, pictures, batch, num_workers=WORKERS, persistent_workers=True, **options)
        _compare(name, make, device, rounds, warm)


def _step_alone(device: str) -> float:
    go = graphs.by_hand(graphs.convnet, None, device=device)
    go()
    return graphs.seconds(go, device)


def _compare(name: str, make: Callable[[], Any], device: str, rounds: int, warm: int) -> None:
    learners = {
        who: graphs.learner(graphs.convnet, configure, make(), device)
        for who, configure in LEARNERS.items()
        if "graph()" not in who or device != "cpu"
    }
    runs = {
        "by hand": graphs.by_hand(graphs.convnet, None, make(), device),
        "by hand, compiled with graphs": graphs.by_hand(graphs.convnet, "reduce-overhead", make(), device),
        **{who: graphs.epochs_of(learner) for who, learner in learners.items()},
    }
    steps: dict[str, list[float]] = {who: [] for who in runs}
    waited: dict[str, list[float]] = {who: [] for who in runs}
    for turn in range(rounds + warm):
        for who, go in runs.items():
            with waits() as found:
                taken = graphs.seconds(go, device)
            if turn >= warm:
                steps[who].append(taken)
                waited[who].append(sum(found) / graphs.STEPS)
    print(f"loader: {name}")
    for who in runs:
        ratio = statistics.median(a / b for a, b in zip(steps[who], steps["by hand"], strict=True))
        took, wait = (statistics.median(each[who]) * 1e3 for each in (steps, waited))
        shown = f", inspect() says {_shown(learners[who]) * 1e3:.3f}" if who in learners else ""
        print(f"  {who:32} {took:8.3f} ms a step, {ratio:.3f} of by hand, waited {wait:.3f} ms{shown}")


def _shown(learner: Learner) -> float:
    times = learner.inspect("next").times
    return 0.0 if times is None else times["data"]

"""Curves of what the values that steps reach cost: nothing where there are none."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from growth import Row, cpu, curve


def _learner(folder: str, model: Any, level: str, step: Any = None) -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from notebook_learner import LearnerBuilder

    torch.set_num_threads(1)
    builder = LearnerBuilder(Path(folder) / level).num_epochs(1000).metrics().renderer("silent")
    builder.train_step(step) if step is not None else builder.loss(torch.nn.functional.cross_entropy)
    data = TensorDataset(torch.randn(256, 4), torch.randint(0, 2, (256,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return builder.exactness(level).build(model, optimizer, None, DataLoader(data, 8))  # type: ignore[arg-type]


def _best(work: Callable[[], Any], times: int) -> float:
    """The least microseconds that it took."""
    least = float("inf")
    for _ in range(times):
        began = perf_counter()
        work()
        least = min(least, perf_counter() - began)
    return 1e6 * least


@curve("reaches nothing", "modules", "keyframe, us", "the same, off", "ratio", "step, us", "the same, off")
def reaches_nothing(quick: bool) -> Iterator[Row]:
    """A keyframe in a run, and a step of `fit`, of a training whose steps reach nothing unusual; with
    `.exactness("off")` beside it, by turns."""
    import torch

    for modules in (1, 41) if quick else (1, 41, 401, 3001):
        layers = [
            torch.nn.Linear(4, 4) if number % 2 == 0 else torch.nn.ReLU() for number in range(modules - 1)
        ]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            both = [_learner(folder, model, level) for level in ("told", "off")]
            for learner in both:
                learner.step(2)
            rounds = 3 if quick else 30
            frames, steps = [float("inf")] * 2, [float("inf")] * 2
            for _ in range(rounds):
                for number, learner in enumerate(both):
                    replica = learner._replica
                    with replica.carried.moving():  # as inside a run
                        frames[number] = min(frames[number], _best(replica.capture, 3))
                    taken = 5 if modules > 400 else 50
                    took = _best(lambda learner=learner, taken=taken: learner.step(taken), 1)
                    steps[number] = min(steps[number], took / taken)
            yield modules, frames[0], frames[1], frames[0] / frames[1], steps[0], steps[1]
            for learner in both:
                learner._replica.saving.close()


@curve(
    "replay buffer",
    "transitions",
    "first step, ms",
    "step(1) with keyframe, ms CPU",
    "rewind(1), ms",
    "save, ms",
    "MB",
)
def replay_buffer(quick: bool) -> Iterator[Row]:
    """A deque of transitions of four arrays, in the step's closure, that grows by one a step."""
    import numpy as np
    import torch

    for size in (100, 2000) if quick else (1000, 10_000, 100_000):
        buffer: deque[Any] = deque(maxlen=size + 1000)

        def transition() -> Any:
            return tuple(np.ones(4, np.float32) for _ in range(4))

        def step(model: Any, batch: Any, buffer: Any = buffer, transition: Any = transition) -> Any:
            buffer.append(transition())
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

        buffer.extend(transition() for _ in range(size))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            learner = _learner(folder, torch.nn.Linear(4, 2), "told", step)
            first = _best(learner.step, 1) / 1e3
            with cpu() as took:
                for _ in range(5):
                    learner.step(1)
            back = _best(learner.rewind, 1) / 1e3
            began = perf_counter()
            label = learner.save()
            saved = 1e3 * (perf_counter() - began)
            files = Path(folder).rglob(f"*-{label}*")
            yield size, first, took.ms / 5, back, saved, sum(path.stat().st_size for path in files) / 1e6
            learner._replica.saving.close()

"""Lists the waits for the device in a step, a block, a keyframe, a save and more, each with its place in
the code.

    python tests/gpu/waits.py [--inside FOLDER]

On a machine without a GPU it runs on the stand-in (stand_in.py), and has every wait. On a GPU it has those
that torch's sync debug mode tells of: not the ones for an event, for the device, or for memory that is not
pinned. --inside names the files whose lines are shown; by default those of the package.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import stand_in
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, armed, batches, counted_waits, on_device
from torch import nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.breakpoint import NonFinite
from notebook_learner.metric import Accuracy, GradNorm, Loss

STEPS = 20


def build(directory: str, precision: str, data: Any, *, prefetch: bool = False, **more: Any) -> Learner:
    """A training with what most have."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train_numeric(GradNorm())
        .loss(F.cross_entropy)
        .devices([DEVICE], prefetch=prefetch)
        .num_epochs(10)
        .clip_gradients(norm=1.0)
        .precision(precision)  # type: ignore[arg-type]
        .ema(0.9)
        .break_on(NonFinite())
        .with_file_checkpointer()
        .renderer("silent")
        .seed(7)
    )
    for name, value in more.items():
        getattr(builder, name)(value)
    schedule: Any = lambda step: 0.01 / (1 + step / 20)  # noqa: E731
    valid = batches(3)
    return builder.build(model, lambda p: torch.optim.Adam(p, lr=1e-2), schedule, data, valid)


@contextmanager
def waits(inside: str) -> Iterator[Counter[tuple[str, str]]]:
    """Counts kinds and places of the waits in here."""
    found: Counter[tuple[str, str]] = Counter()
    if stand_in.loaded():
        with stand_in.listening() as told:
            yield found
        found.update((each.kind, each.place(inside)) for each in told if each.waits)
        return
    with counted_waits() as places:
        yield found
    found.update(("told by torch", place) for place in places)


def listed(precision: str, where: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done, one after the other."""
    data = batches(60)
    with tempfile.TemporaryDirectory() as directory:
        there = on_device(data) if where == "device" else data
        learner = build(directory, precision, there, prefetch="prefetch" in where)
        learner.step(4)  # lazy allocations wait
        replica = learner._replica
        loop = replica.loop
        with armed(learner) as watch:
            yield f"{STEPS} steps in {precision}, batches on the {where}", lambda: loop._steps(STEPS)
            yield "the block's end", lambda: loop.flush(0.0, watch)
        if (precision, where) != ("fp32", "device"):
            return
        states: list[Any] = []
        yield "a keyframe", lambda: replica._keep(replica._capture_soon(), 0.0)
        yield "capture()", lambda: states.append(learner.capture())
        yield "restore(...)", lambda: learner.restore(states[0])
        yield "save()", lambda: learner.save()
        yield "step(5)", lambda: learner.step(5)
        yield "rewind(3)", lambda: learner.rewind(3)
        yield "inspect()", lambda: learner.inspect()
        yield "what_if(3, lr=0.1)", lambda: learner.what_if(3, lr=0.1)
        yield "evaluate(3 batches)", lambda: learner.evaluate(data[:3])
        yield "predict(3 batches)", lambda: learner.predict(data[:3])
        yield "the rest of the epoch", lambda: learner.fit(epochs=1)


def main() -> None:
    """Print it."""
    asked = argparse.ArgumentParser(description="Lists the waits for the device.")
    asked.add_argument("--inside", default="notebook_learner/", help="whose lines are shown")
    inside = asked.parse_args().inside
    if not torch.cuda.is_available():
        if reason := stand_in.why_not():
            raise SystemExit(reason)
        stand_in.load()
    warnings.simplefilter("ignore")
    runs = [
        ("fp32", "device"),
        ("fp32", "host"),
        ("fp32", "host, prefetch=True"),
        ("bf16", "device"),
        ("fp16", "device"),
    ]
    for precision, where in runs:
        for name, do in listed(precision, where):
            with waits(inside) as found:
                do()
            print(f"\n{name}: {found.total()}")
            for (kind, place), count in found.most_common():
                print(f"  {count:4}  {kind:34}{place}")
    for fault in stand_in.faults() if stand_in.loaded() else []:
        print("\nfault:", fault)


if __name__ == "__main__":
    main()

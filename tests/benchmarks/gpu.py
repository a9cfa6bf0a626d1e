"""What the Learner adds on a GPU, beside a loop written by hand, in one command of under eight minutes: a
step, one with a panel, with `.graph()`, with batches from the host and `prefetch=True`; a keyframe, a save.

Everything runs in turn within one process, and what counts is the median of the ratios within a round. Each
part has a share of the time, and takes as many rounds as fit into it.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import graphs
import torch

from notebook_learner import Learner

MINUTES = 7.0
WARM = 2
"""The first rounds allocate, compile and choose algorithms: they do not count."""

Runs = dict[str, Callable[[], float]]


class Row(NamedTuple):
    """One line of the table: the time of one way, and its ratio to the loop by hand."""

    part: str
    way: str
    milliseconds: float
    ratio: float
    rounds: int


def _steps(runs: dict[str, Callable[[], float]]) -> Runs:
    return {who: lambda go=go: graphs.seconds(go) for who, go in runs.items()}  # type: ignore[misc]


def step() -> Runs:
    """The convnet, batches on the device."""
    make = graphs.MODELS["G2 convnet"]
    shown = graphs.learner(make, lambda builder: builder.renderer("panel"))
    return _steps(
        {
            "by hand": graphs.by_hand(make, None),
            "learner": graphs.epochs_of(graphs.learner(make, lambda builder: None)),
            "learner, panel": graphs.epochs_of(shown),
        }
    )


def graph() -> Runs:
    """The tiny MLP, whose time is all launches."""
    make = graphs.MODELS["G1 tiny MLP"]
    return _steps(
        {
            "by hand": graphs.by_hand(make, None),
            "learner": graphs.epochs_of(graphs.learner(make, lambda builder: None)),
            "learner, graph()": graphs.epochs_of(graphs.learner(make, lambda builder: builder.graph())),
        }
    )


def prefetch() -> Runs:
    """The convnet with larger pictures that lie in the host's memory: not pinned, as a loader gives them."""
    make: graphs.Make = lambda: (graphs.convnet()[0], (64, 3, 96, 96))  # noqa: E731
    one = next(iter(graphs.there((64, 3, 96, 96), "cpu")))
    data = [tuple(each.clone() for each in one) for _ in range(8)] * (graphs.STEPS // 8 or 1)
    pinned = [tuple(each.pin_memory() for each in pair) for pair in data[:8]] * (graphs.STEPS // 8 or 1)

    def ahead(builder: Any) -> None:
        builder.devices([graphs.DEVICE], prefetch=True)

    given: Any = data
    return _steps(
        {
            "by hand": graphs.by_hand(make, None, given),
            "by hand, pinned": graphs.by_hand(make, None, pinned),  # type: ignore[arg-type]
            "learner": graphs.epochs_of(graphs.learner(make, lambda builder: None, given)),
            "learner, prefetch=True": graphs.epochs_of(graphs.learner(make, ahead, given)),
        }
    )


def _stepped() -> Learner:
    made = graphs.learner(lambda: (graphs.Transformer(), (16, 64, 128)), lambda b: b.with_file_checkpointer())
    made.step(2)
    return made


def _tensors(learner: Learner) -> list[torch.Tensor]:
    held = learner.optimizer.state.values()  # type: ignore[union-attr]
    more = [value for each in held for value in each.values() if isinstance(value, torch.Tensor)]
    return [*learner.model.state_dict().values(), *more]


def _timed(do: Callable[[], Any]) -> Callable[[], float]:
    def go() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        do()
        torch.cuda.synchronize()
        return time.perf_counter() - started

    return go


def keyframe() -> Runs:
    """The transformer's whole state, copied to the host. By hand: each tensor by `.cpu()`."""
    learner = _stepped()
    replica = learner._replica
    return {
        "by hand": _timed(lambda: [each.detach().cpu() for each in _tensors(learner)]),
        "learner": _timed(lambda: replica._keep(replica.capture(), 0.0)),
    }


def save() -> Runs:
    """The transformer's checkpoint. By hand: `torch.save` of what the model and the optimizer give."""
    learner, folder = _stepped(), Path(tempfile.mkdtemp())

    def by_hand() -> None:
        state = {"model": learner.model.state_dict(), "optim": learner.optimizer.state_dict()}  # type: ignore[union-attr]
        torch.save(state, folder / "state.pt")

    return {"by hand": _timed(by_hand), "learner": _timed(learner.save)}


PARTS: dict[str, Callable[[], Runs]] = {
    "step": step,
    "graph": graph,
    "prefetch": prefetch,
    "keyframe": keyframe,
    "save": save,
}


def measured(part: str, seconds: float, most: int, warm: int) -> Iterator[Row]:
    """Run the ways of one part in turn, for so long; the first `warm` rounds do not count."""
    ends = time.monotonic() + seconds
    runs = PARTS[part]()
    times: dict[str, list[float]] = {who: [] for who in runs}
    turn = 0
    while turn < warm + 1 or (turn < warm + most and time.monotonic() < ends):
        for who, go in runs.items():
            taken = go()
            if turn >= warm:
                times[who].append(taken)
        turn += 1
    for who, each in times.items():
        ratio = statistics.median(mine / plain for mine, plain in zip(each, times["by hand"], strict=True))
        yield Row(part, who, statistics.median(each) * 1e3, ratio, len(each))


def table(rows: list[Row], command: str, dry: bool) -> str:
    """The rows as Markdown, with all that has to be known beside figures."""
    device = "the stand-in: these are no figures of a GPU" if dry else torch.cuda.get_device_name()
    head = (
        f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {device}, torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, Python {platform.python_version()}: `{command}`\n\n"
        "| part | way | ms | of by hand | rounds |\n|---|---|---:|---:|---:|\n"
    )
    lines = (f"| {r.part} | {r.way} | {r.milliseconds:.3f} | {r.ratio:.3f} | {r.rounds} |\n" for r in rows)
    return head + "".join(lines)


def main(path: Path, dry: bool) -> None:
    """Measure all parts, print the table, and write it to a file."""
    if dry:
        sys.path.append(str(Path(__file__).parents[1] / "gpu"))
        import stand_in

        if reason := stand_in.why_not():
            raise SystemExit(f"gpu --dry: {reason}")
        stand_in.load()
        graphs.STEPS = 2
    elif not torch.cuda.is_available():
        raise SystemExit("gpu: this measures a GPU, and torch sees none here; --dry runs it on the stand-in")
    share = 0.0 if dry else MINUTES * 60 / len(PARTS)
    rows: list[Row] = []
    for part in PARTS:
        rows += measured(part, share, 30, 0 if dry else WARM)
        print(f"{part}: {rows[-1].rounds} rounds", file=sys.stderr, flush=True)
    text = table(rows, f"python -m tests.benchmarks gpu{' --dry' if dry else ''}", dry)
    path.write_text(text, encoding="utf-8")
    print(text)

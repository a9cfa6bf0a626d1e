"""One trainer, one workload, one process: `python peer_process.py PEER WORKLOAD STEPS FOLDER`.

Leaves FOLDER/result.json and FOLDER/weights.npy. Times count from the first line below, so with torch's
import; the first step is over when the second forward pass begins.
"""

import time

BEGAN = time.process_time(), time.perf_counter()

import importlib  # noqa: E402  # after the clock
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from peer_table import PEERS  # noqa: E402
from peer_work import EPOCHS, KINDS, Work  # noqa: E402


def between(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    return end[0] - start[0], end[1] - start[1]


def mean_loss(work: Work, batches: list[Any]) -> float:
    """Over the first batches, in eval mode: what the training came to, whatever trained."""
    work.model.eval()
    with torch.no_grad():
        losses = [float(work.loss(work.model(x), y)) for x, y in batches]
    return sum(losses) / len(losses)


def main(name: str, workload: str, steps: int, folder: Path) -> None:
    torch.set_num_threads(1)
    work = Work.of(KINDS[workload], steps, folder)
    batches = list(work.feed.batches[:20])
    peer = PEERS[name]
    train: Callable[[Work], None] = getattr(importlib.import_module(peer.module), peer.function)
    work.watch_the_first_step()
    train(work)
    asked = work.feed.asked[-EPOCHS:]  # some look at the first batch beforehand
    assert len(asked) == EPOCHS, f"{name} walked its data {len(asked)} times"
    cpu, wall = between(asked[1], asked[-1])
    taken = (EPOCHS - 2) * steps
    start_cpu, start_wall = between(BEGAN, work.first_step[0])
    epoch_cpu, epoch_wall = between(asked[0], asked[1])
    result = {
        "cpu_us": cpu / taken * 1e6,
        "wall_us": wall / taken * 1e6,
        "start_cpu_s": start_cpu,
        "start_wall_s": start_wall,
        "first_epoch_cpu_us": epoch_cpu / steps * 1e6,
        "first_epoch_wall_us": epoch_wall / steps * 1e6,
        "loss": mean_loss(work, batches),
        "versions": peer.versions(),
    }
    weights = [parameter.detach().flatten().numpy() for parameter in work.model.parameters()]
    np.save(folder / "weights.npy", np.concatenate(weights))
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))

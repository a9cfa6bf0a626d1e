"""One trainer, one workload, one process: `python peer_process.py PEER WORKLOAD STEPS FOLDER`.

It takes turns with the hand-written loop, a chunk of steps each (`peer_work.Feed`), and has to end where
that one ends. Leaves FOLDER/result.json. Times count from the first line below, so with torch's import.
"""

from time import perf_counter, process_time

BEGAN = process_time(), perf_counter()

import copy  # noqa: E402  # after the clock
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from peer_hand import loop_for  # noqa: E402
from peer_table import PEERS  # noqa: E402
from peer_work import EPOCHS, KINDS, Batch, Feed, Taken, Work  # noqa: E402


def prepared(workload: str, steps: int, folder: Path) -> Work:
    kind = KINDS[workload]
    x, y = kind.draw(steps, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = kind.make()
    by_hand = folder / "by hand"
    by_hand.mkdir()
    loop = loop_for(kind, copy.deepcopy(model), by_hand)
    return Work(kind, model, Feed(list(zip(x, y, strict=True)), loop), folder)


def mean_loss(model: torch.nn.Module, work: Work, batches: list[Batch]) -> float:
    """What the training came to."""
    model.eval()
    with torch.no_grad():
        return sum(float(work.loss(model(x), y)) for x, y in batches) / len(batches)


def compared(name: str, work: Work) -> dict[str, Any]:
    """Raise AssertionError if a peer is quick because it trains something else."""
    near, hand = PEERS[name].near, work.feed.by_hand.model
    pairs = [
        (a.detach(), b.detach()) for a, b in zip(hand.parameters(), work.model.parameters(), strict=True)
    ]
    exact = all(torch.equal(expected, weight) for expected, weight in pairs)
    apart = max(float((expected - weight).abs().max()) for expected, weight in pairs)
    if near is None:
        assert exact, f"{name} ends with other weights, {apart:.2g} apart at most"
    batches = work.feed.pairs[:20]
    wanted = mean_loss(hand, work, batches)
    # Accelerate leaves its autocast around the model's forward: equal weights would give another loss.
    loss = wanted if exact else mean_loss(work.model, work, batches)
    assert abs(loss - wanted) <= (near or 0.0) * wanted, f"{name}: the loss ends at {loss}, not at {wanted}"
    return {"exact": exact, "loss": loss, "loss_by_hand": wanted}


def figures(work: Work, steps: int) -> dict[str, float]:
    """The trainer's share of what passed, and the loop's."""
    marks = work.feed.marks
    assert len(marks) == EPOCHS, f"the data were walked {len(marks)} times"

    def between(start: int, end: int) -> tuple[Taken, Taken]:
        passed, spent = marks[end][0] - marks[start][0], marks[end][1] - marks[start][1]
        return passed - spent, spent

    own, hand = between(1, -1)
    first, _ = between(0, 1)
    start = work.first_step[0] - Taken(*BEGAN)
    taken = (EPOCHS - 2) * steps / 1e6
    return {
        "cpu_us": own.cpu / taken,
        "wall_us": own.wall / taken,
        "raw_cpu_us": hand.cpu / taken,
        "raw_wall_us": hand.wall / taken,
        "added_cpu_us": (own.cpu - hand.cpu) / taken,
        "cpu_ratio": own.cpu / hand.cpu,
        "wall_ratio": own.wall / hand.wall,
        "first_epoch_cpu_us": first.cpu / steps * 1e6,
        "start_cpu_s": start.cpu,
        "start_wall_s": start.wall,
    }


def main(name: str, workload: str, steps: int, folder: Path) -> None:
    torch.set_num_threads(1)
    work = prepared(workload, steps, folder)
    peer = PEERS[name]
    work.watch_the_first_step()
    # Imported within the time: what a person waits for.
    train: Callable[[Work], None] = getattr(importlib.import_module(peer.module), peer.function)
    train(work)
    work.feed.settle()
    result = {"versions": peer.versions(), **figures(work, steps), **compared(name, work)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))

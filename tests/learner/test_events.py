"""The loop seen from outside: the whole list of events of a small run, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from notebook_learner import DataError, Learner, LearnerBuilder
from notebook_learner.event import Event, MetricBlock, Rewound, RunOpened, StatusChanged

BATCHES = [(torch.ones(4, 2), torch.ones(4, 1)), (torch.ones(2, 2), torch.zeros(2, 1))]


class Tape:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def told(self) -> list[str]:
        return [name for name in map(short, self.events) if name]


def short(event: Event) -> str:
    name = type(event).__name__
    if isinstance(event, MetricBlock):
        return f"{event.split} {event.epoch}: {event.first}-{event.last} ({event.iteration})"
    if isinstance(event, StatusChanged):
        return f"{event.status} {event.epoch} {event.split} {event.step}"
    if isinstance(event, Rewound):
        return f"Rewound {event.epoch} {event.split} {event.step}"
    if isinstance(event, RunOpened):
        return name
    return " ".join([name, *(str(getattr(event, f)) for f in ("split", "epoch") if hasattr(event, f))])


def learner(tmp_path: Path, tape: Tape, **options: Any) -> Learner:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    builder = (
        LearnerBuilder(tmp_path)
        .loss(nn.functional.mse_loss)
        .num_epochs(options.pop("epochs", 1))
        .metric_logger(tape)
        .renderer("silent")
        .with_application_logger(False)
    )
    train, valid = options.get("train", BATCHES), list(BATCHES)  # the very same list would be remarked on
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, train, valid)


def joined(told: list[str]) -> list[str]:
    """Blocks are cut by the clock: in a comparison only their steps count."""
    rows: list[str] = []
    for line in told:
        place, _, steps = line.partition(": ")
        if steps and rows and rows[-1].startswith(place + ": "):
            first = rows[-1].partition(": ")[2].partition("-")[0]
            line = f"{place}: {first}-{steps.partition('-')[2]}"
        rows.append(line) if not (steps and rows and rows[-1].startswith(place + ": ")) else rows.__setitem__(
            -1, line
        )
    return rows


def test_a_run_tells_this_and_only_this(tmp_path: Path) -> None:
    tape = Tape()
    learner(tmp_path, tape).fit()
    assert joined(tape.told()) == [
        "RunOpened",
        "running 1 train 0",
        "SplitStarted train 1",
        "train 1: 1-2 (2)",
        "SplitEnded train 1",
        "SplitStarted valid 1",
        "valid 1: 1-2 (2)",
        "SplitEnded valid 1",
        "EpochEnded 1",
        "finished 1 valid 2",
    ]


def test_steps_and_rewinds_are_told_where_they_happen(tmp_path: Path) -> None:
    tape = Tape()
    mine = learner(tmp_path, tape)
    mine.step(1)
    mine.step(2)
    mine.rewind(1)
    assert joined(tape.told()) == [
        "RunOpened",
        "running 1 train 0",
        "SplitStarted train 1",
        "train 1: 1-1 (1)",
        "paused 1 train 1",
        "running 1 train 1",
        "train 1: 2-2 (2)",
        "SplitEnded train 1",
        "SplitStarted valid 1",
        "valid 1: 1-1 (2)",
        "paused 1 valid 1",
        "Rewound 1 valid 0",
        "paused 1 valid 0",
    ]


def test_events_hold_no_tensors(tmp_path: Path) -> None:
    tape = Tape()
    learner(tmp_path, tape).fit()
    blocks = [event for event in tape.events if isinstance(event, MetricBlock)]
    assert blocks
    for block in blocks:
        for column in block.columns.values():
            assert type(column.values) is np.ndarray
            assert column.values.dtype == np.float64


def test_blocks_are_about_a_tenth_of_a_second_not_a_step(tmp_path: Path) -> None:
    tape = Tape()
    learner(tmp_path, tape, train=BATCHES * 2000).fit()
    blocks = [event for event in tape.events if isinstance(event, MetricBlock) and event.split == "train"]
    assert sum(block.count for block in blocks) == 4000
    assert max(block.count for block in blocks) > 16
    assert [block.first for block in blocks[1:]] == [block.last + 1 for block in blocks[:-1]]


def test_the_weighted_mean_counts_a_short_batch_as_what_it_is(tmp_path: Path) -> None:
    mine = learner(tmp_path, Tape())
    mine.fit()
    values, weights = mine.history["train", "Loss"], mine.history.weights("Loss", "train")
    assert weights.tolist() == [4, 2]
    assert mine.history.final("Loss", "train") == pytest.approx((values * weights).sum() / 6, rel=1e-15)
    assert abs(mine.history.final("Loss", "train") - values.mean()) > 1e-3


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ([], "the train loader, a list, yielded no batch"),
        (iter(BATCHES), "it can be walked only once"),
    ],
    ids=["empty", "generator"],
)
def test_a_loader_that_yields_nothing_says_why(train: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=text):
        learner(tmp_path, Tape(), train=train, epochs=2).fit()

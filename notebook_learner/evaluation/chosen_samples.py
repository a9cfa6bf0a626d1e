"""A few samples that are chosen once: what the model says of them is shown after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.batch import count_samples, mapped
from ..data.cursor import Cursor
from ..data.rank_share import first_of
from ..data.sampling import END
from ..errors import DataError
from ..event import SampleRow, Sheet
from ..inspection.sample_rows import sample_rows
from ..run.replica import Replica
from ..run.settings import AskedSamples
from ..step.step import ValidationStep
from .set_pass import beside

WHAT = "samples"


class ChosenSamples:
    """The first samples of a loader. They are read when they are first shown, and kept.

    Args:
        asked: what the user gave.
        cursor_for: makes a cursor for a loader, or for batches.
    """

    def __init__(self, asked: AskedSamples, cursor_for: Callable[[Any], Cursor]) -> None:
        self._asked = asked
        self._cursor_for = cursor_for
        self._batches: list[Any] = []

    def shown(self, replica: Replica, step: ValidationStep, loss: Callable[..., Any] | None) -> Sheet:
        """Run the validation step on the samples, and return what it says of them. The training stands
        still, and stays as it is, to the bit."""
        __tracebackhide__ = True
        asked, rows = self._asked, list[SampleRow]()
        cursor = self._cursor_for(self._batches or asked.loader)
        with beside(replica, cursor, WHAT):
            if not self._batches:
                self._batches = _first_batches(cursor, asked.n)
            for batch in self._batches:
                output = step(batch, False)
                rows += sample_rows(
                    batch,
                    output,
                    count_samples(batch),
                    loss_fn=loss,
                    labels=asked.labels,
                    tokenizer=asked.tokenizer,
                )
        at = replica.shown_position
        return Sheet("Samples", None, at.epoch, at.split, at.step, tuple(rows))


def _first_batches(cursor: Cursor, n: int) -> list[Any]:
    """The batches that hold the first n samples of the first epoch; the last one is cut."""
    cursor.begin(1)
    batches: list[Any] = []
    while n > 0 and (batch := cursor.fetch()) is not END:
        samples = count_samples(batch)
        chosen = batch if samples <= n else first_of(batch, samples, n)
        batches.append(
            mapped(chosen, torch.clone)
        )  # a view would hold the whole batch; a loader may reuse it
        n -= samples
    if not batches:
        raise DataError(f"{WHAT}: the loader yielded no batch")
    return batches

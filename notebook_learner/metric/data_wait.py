"""How long steps wait for their batches."""

from __future__ import annotations

from .base import Reading


class DataWait(Reading):
    """The share of the time in which training stood still for the next batch, in percent, over the steps
    since the last reading. Above a few percent more workers, or a faster dataset, would pay.

    On several devices that is rank 0's. It costs two looks at the clock for each batch.

    >>> DataWait().unit
    '%'
    """

    name = "Data Wait"
    unit = "%"
    higher_is_better = False

    def sample(self) -> float:
        """Ask the context."""
        return self.context.data_wait

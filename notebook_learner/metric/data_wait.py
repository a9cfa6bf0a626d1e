"""How long steps wait for their batches."""

from __future__ import annotations

from .base import Reading


class DataWait(Reading):
    """The share of the time in which training waited for the next batch, in percent, since the last reading.

    Above a few percent, more workers or a faster dataset would help. On several devices it is the value of
    rank 0. It costs two reads of the clock for each batch.

    >>> DataWait().unit
    '%'
    """

    name = "Data Wait"
    unit = "%"
    higher_is_better = False

    def sample(self) -> float:
        """Return the context's value."""
        return self.context.data_wait

"""The speed of the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Floats, Metric, Scalar


class SamplesPerSecond(Metric):
    """Samples per second, over the steps since the last reading; a short last batch has fewer samples.

    >>> SamplesPerSecond().unit
    'samples/sec'
    """

    name = "Samples Per Second"
    unit = "samples/sec"
    higher_is_better = True
    weighted = False

    def __init__(self) -> None:
        super().__init__()  # no `input`: it reads no output

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Count the batch's samples; the output is not read."""
        return self.context.samples, 1

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """Return the samples of all ranks."""
        samples: Floats = np.nansum(raw, axis=0)
        return samples

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return the block's mean batch size at the block's speed, for each of its steps."""
        return np.full(len(raw), raw.mean() * self.context.steps_per_second)

"""Error rates of recognised text: edits divided by the length of the target."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Floats, Input
from .edit_distance import edits
from .sequences import SequenceMetric, Units


class _ErrorRate(SequenceMetric):
    """Counts (edits, length of the target) of each sequence."""

    higher_is_better = False

    def __init__(
        self, decode: Any = None, pad_token: int | None = None, *, input: Input | None = None
    ) -> None:
        super().__init__(decode, pad_token, input=input)
        self._edits = edits(type(self).__name__)

    def compare(self, prediction: Units, target: Units) -> tuple[float, ...]:
        """Return the edits and the length of the target."""
        return self._edits(prediction, target), len(target)

    def score(self, counts: Floats) -> Floats:
        """Return edits per hundred; NaN if the target is empty."""
        edited, length = counts[..., 0], counts[..., 1]
        return np.where(length > 0, 100.0 * edited / length, np.nan)

    def weights(self, counts: Floats) -> Floats:
        """Return the length of the targets."""
        return counts[..., 1]


class CharErrorRate(_ErrorRate):
    """Edited characters out of the target's characters, in percent; weighted by the target's length.

    The characters are those of texts: texts from `decode`, or texts that the output holds. Token numbers
    without `decode` count as one character each. Characters are Unicode code points; a `decode` may normalise
    them. The epoch's value comes from all its edits and characters. It needs rapidfuzz: pip install
    'notebook_learner[text]'.

    >>> CharErrorRate(pad_token=0).name
    'CER'
    """

    name = "CER"

    def units(self, text: str) -> Units:
        """Return the characters."""
        return text


class WordErrorRate(_ErrorRate):
    """Edited words out of the target's words, in percent; weighted by the target's length.

    Words are separated by white space, in texts from `decode` or texts that the output holds. Token numbers
    without `decode` count as one word each. The epoch's value comes from all its edits and words. It needs
    rapidfuzz: pip install 'notebook_learner[text]'.

    >>> WordErrorRate(decode=lambda tokens: " ".join(map(str, tokens))).name
    'WER'
    """

    name = "WER"

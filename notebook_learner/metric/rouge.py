"""ROUGE-L: how many of the target's words the prediction has in the same order."""

from __future__ import annotations

from typing import Any

from .base import Floats, Input
from .edit_distance import common
from .sequences import SequenceMetric, Units


class RougeLScore(SequenceMetric):
    """The F1 of the longest common subsequence, in percent; over an epoch the mean per sequence.

    It compares words or token numbers (Lin 2004), for each sequence separately, so its weight is the number
    of sequences. Two empty sequences give 100, as in Burn. Texts are split at white space: lower-case or stem
    them in `decode`. It needs rapidfuzz: pip install 'notebook_learner[text]'.

    >>> RougeLScore(pad_token=0).name
    'ROUGE-L'
    """

    name = "ROUGE-L"
    higher_is_better = True

    def __init__(
        self, decode: Any = None, pad_token: int | None = None, *, input: Input | None = None
    ) -> None:
        super().__init__(decode, pad_token, input=input)
        self._common = common(type(self).__name__)

    def compare(self, prediction: Units, target: Units) -> tuple[float, ...]:
        """Return the sequence's F1 (twice the common part divided by both lengths), and one sequence."""
        both = len(prediction) + len(target)
        return 2.0 * self._common(prediction, target) / both if both else 1.0, 1.0

    def score(self, counts: Floats) -> Floats:
        """Return the mean."""
        mean: Floats = 100.0 * counts[..., 0] / counts[..., 1]
        return mean

    def weights(self, counts: Floats) -> Floats:
        """Return the number of sequences."""
        return counts[..., 1]

"""BLEU: how many of the predicted n-grams are in the target."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np

from .base import Floats, Input
from .sequences import SequenceMetric, Units


class BleuScore(SequenceMetric):
    """BLEU with one reference, in percent, of words or token numbers; its weight is the target's length.

    Each step's value is the corpus BLEU of its sequences. The epoch's value is the corpus BLEU of all its
    sequences, from summed n-gram counts (Papineni et al. 2002). Texts are split at white space: tokenise them
    in `decode` for values that others can compare. Counting takes a quarter of a millisecond for a pair of
    sequences of 100 words, a hundred times as long as an edit distance.

    Args:
        decode: a function from a list of token numbers to a text, or a tokenizer; without it, tokens are the
            words.
        pad_token: a token that is left out of predictions and targets.
        max_n: the length of the longest n-grams.
        smoothing: the count for an order without any match: None (the score is 0), a number such as 0.1 in
            place of the matches, or "exponential" (half a match, a quarter, ..., as in sacreBLEU).
        input: takes `predictions` and `targets` out of another output.

    >>> BleuScore().name, BleuScore(max_n=2).name
    ('BLEU-4', 'BLEU-2')
    """

    higher_is_better = True

    def __init__(
        self,
        decode: Any = None,
        pad_token: int | None = None,
        *,
        max_n: int = 4,
        smoothing: float | Literal["exponential"] | None = None,
        input: Input | None = None,
    ) -> None:
        super().__init__(decode, pad_token, input=input)
        if isinstance(max_n, bool) or not isinstance(max_n, int) or max_n < 1:
            raise ValueError(f"BleuScore(max_n={max_n!r}): give the length of the longest n-grams, from 1")
        number = isinstance(smoothing, (int, float)) and not isinstance(smoothing, bool) and smoothing > 0
        if not number and smoothing not in (None, "exponential"):
            raise ValueError(
                f"BleuScore(smoothing={smoothing!r}): give None, a number above 0 such as 0.1, or "
                "'exponential'"
            )
        self.max_n = max_n
        self.smoothing = smoothing
        self.name = f"BLEU-{max_n}"

    def compare(self, prediction: Units, target: Units) -> tuple[float, ...]:
        """Return both lengths, then matches and n-grams of each order."""
        counts = [len(prediction), len(target)]
        for n in range(1, self.max_n + 1):
            counts += [_matches(prediction, target, n), max(0, len(prediction) - n + 1)]
        return tuple(counts)

    def score(self, counts: Floats) -> Floats:
        """Return the brevity penalty times the geometric mean of the orders' precisions."""
        predicted, wanted = counts[..., 0], counts[..., 1]
        matches, total = counts[..., 2::2], counts[..., 3::2]
        precision = self._smoothed(matches, total) / total
        brevity = np.exp(np.minimum(0.0, 1.0 - wanted / predicted))
        whole = 100.0 * brevity * np.exp(np.log(precision).mean(-1))
        # A text too short for the longest n-grams gets 0, as in sacreBLEU; without any text there is no
        # score.
        score = np.where((total > 0).all(-1), whole, 0.0)
        return np.where((predicted > 0) | (wanted > 0), score, np.nan)

    def weights(self, counts: Floats) -> Floats:
        """Return the length of the targets."""
        return counts[..., 1]

    def _smoothed(self, matches: Floats, total: Floats) -> Floats:
        if self.smoothing is None:
            return matches
        none = matches == 0
        if self.smoothing == "exponential":
            return np.where(none, 0.5 ** np.cumsum(none, -1), matches)
        return np.where(none, float(self.smoothing), matches)


def _matches(prediction: Units, target: Units, n: int) -> int:
    found = Counter(_grams(prediction, n)) & Counter(_grams(target, n))
    return found.total()


def _grams(units: Units, n: int) -> Any:
    return zip(*(units[start:] for start in range(n)), strict=False)

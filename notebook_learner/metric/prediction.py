"""A sample of what the model says, beside what it should have said."""

from __future__ import annotations

from typing import Any

from .adaptor import as_fields
from .base import Input, TextMetric
from .sequences import decoder, kept_of, on_host

_LONGEST = 120


class Prediction(TextMetric):
    """One sequence of the latest step as text, with its target: logged and shown, about ten times a second.

    It reads `predictions` and `targets` as the metrics of sequences do (`CharErrorRate`), of one step a
    block, and waits for the device then. Its log has a line a step, as every log: the sample's line is
    repeated for steps that were read together, so with steps of a millisecond it grows by 0.1 to 0.2 MB a
    second. `.metric_valid(Prediction(tokenizer))` has fewer.

    >>> Prediction(decode=lambda tokens: " ".join(map(str, tokens))).name
    'Prediction'

    Args:
        decode: from a list of token numbers to a text, or a tokenizer; without it, numbers are shown.
        pad_token: left out; so is the output's `ignore_index`.
        row: which sequence of the batch; the last one where there are fewer.
        name: to have several.
        input: takes `predictions` and `targets` out of another output.
    """

    needs = ("predictions", "targets")
    by_reference = ("input", "decode")

    def __init__(
        self,
        decode: Any = None,
        pad_token: int | None = None,
        *,
        row: int = 0,
        name: str = "Prediction",
        input: Input | None = None,
    ) -> None:
        self.name = name
        self.decode = decode
        self.pad_token = pad_token
        self.row = row
        self.input = input
        self._decode = decoder(type(self).__name__, decode)
        self._last = ""

    def text(self) -> str:
        """Read it now."""
        item = self.context.output
        if item is None:  # the step after the last one read was broken off
            return self._last
        if self.input is not None:
            item = as_fields(self.name, self.needs, self.input(item))
        kept = kept_of(self.name, item, self.pad_token)
        if not len(kept.targets):
            return self._last
        row = min(self.row, len(kept.targets) - 1)
        kept.predictions, kept.targets = kept.predictions[row : row + 1], kept.targets[row : row + 1]
        ((predictions, targets),) = on_host([kept])
        self._last = f"{self._shown(predictions[0])} (target: {self._shown(targets[0])})"
        return self._last

    def _shown(self, sequence: Any) -> str:
        if not isinstance(sequence, str):
            sequence = self._decode(sequence) if self._decode else " ".join(map(str, sequence))
        line = " ".join(sequence.split())
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"

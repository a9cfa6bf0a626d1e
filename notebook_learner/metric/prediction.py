"""A sample of the model's predictions, next to its target."""

from __future__ import annotations

from typing import Any

from .base import Input, TextMetric
from .output_checks import as_fields
from .sequences import decoder, kept_of, on_host

_LONGEST = 120


class Prediction(TextMetric):
    """One sequence of the latest step as text, with its target: logged and shown about ten times a second.

    It reads `predictions` and `targets` as the metrics of sequences do (`CharErrorRate`), from one step of
    each block, and waits for the device then. Its log has a line for each step, as every log. Steps that were
    read together repeat the sample's line, so with steps of a millisecond the log grows by 0.1 to 0.2 MB a
    second. `.metrics(Prediction(tokenizer), train=False)` writes fewer lines.

    >>> Prediction(decode=lambda tokens: " ".join(map(str, tokens))).name
    'Prediction'

    Args:
        decode: a function from a list of token numbers to a text, or a tokenizer; without it, numbers are
            shown.
        pad_token: a token that is left out; the output's `ignore_index` is left out, too.
        row: which sequence of the batch; the last one if there are fewer.
        name: another name, to have several of them.
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
        """Return the current text."""
        item = self.context.output
        if item is None:  # the step after the last one read was interrupted
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

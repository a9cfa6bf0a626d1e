"""Metrics of predicted sequences, which work on the host: steps keep sequences, and blocks compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import OutputError, StepError, a_kind
from .base import Counted, Floats, Input

Units = Sequence[Any]
"""The units that are compared: the characters of a text, or its words, or token numbers."""
Sequences = Tensor | list[Any]
"""Token numbers [sequences, tokens], or a list with a text or a list of token numbers per sequence."""


class SequenceMetric(Counted):
    """Compares each predicted sequence with its target, on the host and once for each block.

    It needs `predictions` and `targets`, as in `SequenceOutput`: token numbers of shape [sequences, tokens],
    or lists with a text (or list of token numbers) per sequence. If `predictions` is None, it takes the
    best-scored class of `logits`.

    Tensors are copied in the step and stay on their device until the block is read, about ten times a second.
    The rest (one transfer, `decode`, the comparison) takes time in the training thread; the numbers are in
    tests/benchmarks/RESULTS.md.

    Args:
        decode: a function from a list of token numbers to a text, or an object with such a method `decode`,
            such as a tokenizer. Without it, token numbers are compared as they are.
        pad_token: a token that is left out of predictions and targets, at any place; the output's
            `ignore_index` is left out, too.
        input: takes `predictions` and `targets` out of another output.
    """

    unit = "%"
    needs = ("predictions", "targets")
    by_reference = ("input", "decode")

    def __init__(
        self,
        decode: Any = None,
        pad_token: int | None = None,
        *,
        input: Input | None = None,
    ) -> None:
        super().__init__(input=input)
        self.decode = decode
        self.pad_token = pad_token
        self._decode = decoder(type(self).__name__, decode)

    def units(self, text: str) -> Units:
        """Return the parts of a text that are compared: its words, unless a subclass overrides this."""
        return text.split()

    def compare(self, prediction: Units, target: Units) -> tuple[float, ...]:
        """Return the counts of one sequence."""
        raise NotImplementedError(f"{type(self).__name__} must define compare(prediction, target)")

    def keep(self, item: Any) -> KeptSequences:
        """Keep the sequences for later; nothing is read from the device."""
        return kept_of(self.name, item, self.pad_token)

    def count(self, kept: Sequence[KeptSequences]) -> Floats:
        """Compare all sequences of the block, and sum the counts of each step."""
        nothing = np.zeros(len(self.compare((), ())))  # a step may have no sequence
        rows = []
        for predictions, targets in on_host(kept):
            pairs = zip(self._parts(predictions), self._parts(targets), strict=True)
            counts: list[Any] = [nothing, *(self.compare(*pair) for pair in pairs)]
            rows.append(np.sum(counts, axis=0))
        return np.array(rows)

    def _parts(self, sequences: Iterable[Any]) -> Iterator[Units]:
        for sequence in sequences:
            text = self._decode(sequence) if self._decode and not isinstance(sequence, str) else sequence
            yield self.units(text) if isinstance(text, str) else text


@dataclass(slots=True)
class KeptSequences:
    """One step's sequences, unchanged, and the tokens that are padding."""

    predictions: Sequences
    targets: Sequences
    padding: tuple[int, ...]

    def pair(self) -> tuple[Sequences, Sequences]:
        """Return both."""
        return self.predictions, self.targets


def decoder(metric: str, decode: Any) -> Callable[[list[int]], str] | None:
    """Return the function for the argument `decode`."""
    if decode is None:
        return None
    function = getattr(decode, "decode", decode)
    if not callable(function):
        raise TypeError(
            f"{metric}(decode={decode!r}): give a function from a list of token numbers to a text, or a "
            "tokenizer, which has one"
        )

    def text_of(tokens: list[int]) -> str:
        text = function(tokens)
        if not isinstance(text, str):
            raise StepError(
                f"{metric}: decode returned {a_kind(text)} for a list of {len(tokens)} tokens; it "
                "must return their text, a str"
            )
        return text

    return text_of


# In the step -------------------------------------------------------------------------------------------


def kept_of(metric: str, item: Any, pad_token: int | None) -> KeptSequences:
    """Return what was predicted in a step's output, and what the targets are."""
    padding = tuple(pad for pad in (pad_token, getattr(item, "ignore_index", None)) if pad is not None)
    targets = _sequences(metric, "targets", item.targets)
    if item.predictions is not None:
        predictions = _sequences(metric, "predictions", item.predictions)
    else:
        predictions = _best(metric, item, targets, padding)
    if len(predictions) != len(targets):
        raise OutputError(
            f"{metric} got {len(predictions)} predictions for {len(targets)} targets; give one sequence for "
            "each target"
        )
    return KeptSequences(predictions, targets, padding)


def _sequences(metric: str, field: str, given: Any) -> Sequences:
    """Return a copy, since a loader, a captured graph or the user may fill the same memory again."""
    if isinstance(given, Tensor):
        if given.ndim not in (1, 2) or given.is_floating_point() or given.is_complex():
            raise OutputError(
                f"{metric} got `{field}` of shape {list(given.shape)} and {given.dtype}; give token numbers "
                "of shape [sequences, tokens] (scores go into `logits`), or a list of texts"
            )
        return given.detach().clone() if given.ndim == 2 else given.detach().clone()[None]
    if isinstance(given, str):
        return [given]
    if isinstance(given, (list, tuple)):
        return list(given)
    raise OutputError(
        f"{metric} got `{field}` of type {type(given).__name__}; give token numbers of shape [sequences, "
        "tokens], or a list with a text or a list of token numbers per sequence"
    )


def _best(metric: str, item: Any, targets: Sequences, padding: tuple[int, ...]) -> Tensor:
    """Return the best-scored tokens; padding wherever the target is padding."""
    logits = getattr(item, "logits", None)
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        raise OutputError(
            f"{metric} got `predictions` of None, and no `logits` with `targets` of token numbers to take "
            "the best-scored ones from; set `predictions` in the step"
        )
    best = logits.detach().argmax(-1).reshape(targets.shape)
    for pad in padding:
        best = best.masked_fill(targets == pad, pad)
    return best


# Once a block ------------------------------------------------------------------------------------------


def on_host(kept: Sequence[KeptSequences]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Give each step's predictions and targets as lists, without padding; one transfer per device for all."""
    flat = iter(_fetched([each for step in kept for each in step.pair()]))
    for step in kept:
        yield _rows(next(flat), step.padding), _rows(next(flat), step.padding)


def _fetched(sequences: Sequence[Sequences]) -> list[Any]:
    """Return the same with each tensor as an array on the host."""
    found: list[Any] = list(sequences)
    waiting: dict[torch.device, list[int]] = {}
    for index, each in enumerate(sequences):
        if isinstance(each, Tensor):
            waiting.setdefault(each.device, []).append(index)
    for indices in waiting.values():
        tensors = [found[index] for index in indices]
        whole = torch.cat([tensor.reshape(-1).long() for tensor in tensors]).cpu().numpy()
        ends = np.cumsum([tensor.numel() for tensor in tensors])
        for index, tensor, part in zip(indices, tensors, np.split(whole, ends[:-1]), strict=True):
            found[index] = part.reshape(tensor.shape)
    return found


def _rows(sequences: Any, padding: tuple[int, ...]) -> list[Any]:
    if not isinstance(sequences, np.ndarray):
        return [_without(sequence, padding) for sequence in sequences]
    if not padding:
        rows: list[Any] = sequences.tolist()
        return rows
    real = ~np.isin(sequences, padding)
    return [tokens[mask].tolist() for tokens, mask in zip(sequences, real, strict=True)]


def _without(sequence: Any, padding: tuple[int, ...]) -> Any:
    if isinstance(sequence, str):
        return sequence
    tokens = sequence.tolist() if isinstance(sequence, Tensor) else sequence
    return [token for token in tokens if token not in padding]

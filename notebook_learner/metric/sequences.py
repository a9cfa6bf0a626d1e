"""Metrics of texts and other sequences: error rates, BLEU and ROUGE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Size, Tensor

from ..errors import OutputError, StepError, a_kind
from .base import Counted, Floats, Input, Ratio, Scalar
from .tensors import class_dimension, padding

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


class EditComparison:
    """One of rapidfuzz's functions of two sequences, stored by name. The function itself cannot be pickled,
    and a metric is sent to the processes of other devices.

    >>> import pickle
    >>> pickle.loads(pickle.dumps(edits("CER")))("kitten", "sitting")
    3
    """

    def __init__(self, kind: str, function: str, metric: str) -> None:
        self._called = (kind, function, metric)
        try:
            module = import_module("rapidfuzz.distance")
        except ImportError as missing:
            raise ImportError(
                f"{metric} needs rapidfuzz, which is not installed: pip install 'notebook_learner[text]'"
            ) from missing
        self._compare = getattr(getattr(module, kind), function)

    def __call__(self, prediction: Any, target: Any) -> int:
        """Compare two sequences."""
        return int(self._compare(prediction, target))

    def __reduce__(self) -> tuple[type[EditComparison], tuple[str, str, str]]:
        return EditComparison, self._called


def edits(metric: str) -> EditComparison:
    """Return a function for the least number of insertions, deletions and replacements between two sequences.

    >>> edits("CER")("kitten", "sitting")
    3
    """
    return EditComparison("Levenshtein", "distance", metric)


def common(metric: str) -> EditComparison:
    """Return a function for the length of the longest common subsequence.

    >>> common("ROUGE-L")("abcd", "xbyd")
    2
    """
    return EditComparison("LCSseq", "similarity", metric)


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


class Perplexity(Ratio):
    """The exponential of the mean negative log-likelihood per token; its weight is the number of tokens.

    Over an epoch the likelihoods of all tokens are summed before the exponential is taken. So the value is
    that of the epoch's tokens, and not a mean over steps. `output` and `targets` have the shapes that
    `Accuracy` takes; scores are logits. It costs the device a second softmax over the logits, in float32 or
    wider.

    Args:
        pad_token: targets equal to it are left out; by default those equal to the output's `ignore_index`.
        class_dim: the dimension of the classes, if the shapes do not show it.
        input: takes `output` and `targets` out of another output.

    >>> Perplexity(pad_token=0).name
    'Perplexity'
    """

    name = "Perplexity"
    higher_is_better = False
    needs = ("output", "targets")

    def __init__(
        self,
        pad_token: int | None = None,
        *,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> None:
        super().__init__(input=input)
        self.pad_token = pad_token
        self.class_dim = class_dim
        self._shapes: tuple[Size, Size] | None = None
        self._dim = 1

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Sum the tokens' negative log-likelihoods on the device, without a wait for them."""
        output, targets = item.output, item.targets
        if (output.shape, targets.shape) != self._shapes:
            self._dim = class_dimension(self.name, output, targets, self.class_dim)
            self._shapes = (output.shape, targets.shape)
        pad = padding(self.pad_token, item)
        scores, targets = _as_rows(_exact(output), targets, self._dim)
        if pad is None:
            return F.cross_entropy(scores, targets, reduction="sum"), targets.numel()
        loss = F.cross_entropy(scores, targets, reduction="sum", ignore_index=pad)
        return loss, (targets != pad).sum()

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return each step's perplexity."""
        with np.errstate(all="ignore"):
            return np.exp(raw / weights)

    def mean(self, total: float, weight: float) -> float:
        """Return that of the summed likelihoods; infinite if a double cannot hold it."""
        with np.errstate(over="ignore"):
            return float(np.exp(total / weight)) if weight else float("nan")


def _as_rows(scores: Tensor, targets: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The shapes that are fast in cross_entropy, without a copy."""
    if scores.stride(dim) != 1:
        return scores.movedim(dim, 1), targets
    # A token's scores are adjacent, as language models make them: 4.7 ms instead of 10.4 for 3200 x 1000.
    return scores.movedim(dim, -1).reshape(-1, scores.shape[dim]), targets.reshape(-1)


def _exact(scores: Tensor) -> Tensor:
    # A sum of thousands of numbers in half precision has only three digits.
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

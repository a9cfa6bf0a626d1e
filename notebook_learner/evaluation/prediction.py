"""The model's output for every batch of a loader, on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batch import count_samples, mapped
from ..data.rank_share import Idle, first_of
from ..data.rng import capture_rng, restore_rng
from ..errors import ConfigurationError, StepError, a_kind, wrong_arguments
from ..run.rank_protocol import Alone
from ..step.output import LossOutput
from ..step.step import ValidationStep
from .set_pass import Tour

Forward = Callable[[nn.Module, Any], Any]
AfterBatch = Callable[[Any, Any], Any]

BLOCK = 64 << 20
"""Bytes of outputs that are being copied from an accelerator before the host waits for earlier copies."""


def predict(tour: Tour, step: ValidationStep, function: AfterBatch | None) -> Any:
    """Return every output, or what `function(output, batch)` returns for it, joined over the batches.

    Args:
        tour: the way through the loader.
        step: gives the output of a batch.
        function: called with each output, and with the batch as the loader gave it.

    Raises:
        Alone: on several ranks, if the parts of an output cannot be joined to a whole.
    """
    __tracebackhide__ = True
    asking = Asking(step, function, tries=True)
    if tour.others is None:
        tour.go(asking.take_whole)
        return asking.gathered.joined()
    wholes: list[Any] = []

    def read(count: int, seconds: float, others: Sequence[list[PredictedPart | None]]) -> None:
        for batch in zip(asking.told(), *others, strict=True):
            parts = [part for part in batch if part is not None]
            if tour.cursor.each > 1:  # each one is a separate batch of the loader
                wholes.extend(part.output for part in parts)
            else:
                wholes.append(_whole(parts))

    tour.go(asking.take, read)
    return _join(wholes)


class PredictedPart(NamedTuple):
    """What one rank found in its part of a batch."""

    samples: int
    output: Any


class Asking:
    """Runs the model on batches, or on a rank's parts of them.

    Args:
        step: gives the output of a batch.
        function: called with each output, and its batch.
        tries: whether to find out if what the function returns for a part has one entry for each sample.
    """

    def __init__(self, step: ValidationStep, function: AfterBatch | None, *, tries: bool = False) -> None:
        self.gathered = Gathered()
        self._step = step
        self._function = function
        self._tries = tries and function is not None

    def take_whole(self, batch: Any) -> None:
        """Take a batch that no other rank has a part of."""
        __tracebackhide__ = True
        self.gathered.add(self._made(self._output(batch), batch))

    def take(self, batch: Any) -> None:
        """Take this rank's part of a batch, if it has one."""
        __tracebackhide__ = True
        if isinstance(batch, Idle):
            self.gathered.add(None)
            return
        output = self._output(batch)
        part = PredictedPart(count_samples(batch), self._made(output, batch))
        self.gathered.add(part)
        if self._tries:
            self._tries = False
            self._try(output, batch, part)

    def told(self) -> list[PredictedPart | None]:
        """Return the parts since the last call, for rank 0."""
        return self.gathered.landed()

    def _output(self, batch: Any) -> Any:
        __tracebackhide__ = True
        output = self._step(batch, False)
        # What a step returns for a bare tensor, which here is the output itself.
        return output.loss if type(output) is LossOutput else output

    def _made(self, output: Any, batch: Any) -> Any:
        __tracebackhide__ = True
        if self._function is None:
            return output
        with torch.no_grad():
            return self._function(output, batch)

    def _try(self, output: Any, batch: Any, part: PredictedPart) -> None:
        """Call the function again with one sample less. Its result may have a part's length by chance, such
        as a table with one row for each class. Parts of such a result do not make a whole."""
        less = part.samples - 1
        if less < 1 or not _goes_by_samples(part.output, part.samples):
            return
        drawn = capture_rng()
        try:
            # A copy: the function may write to its arguments.
            cut = copy.deepcopy((first_of(output, part.samples, less), first_of(batch, part.samples, less)))
            shorter = self._made(*cut)
        except Exception as refused:  # the user's code runs on a batch that the loader never gave
            raise Alone(_NO_PARTS) from refused
        finally:
            restore_rng(drawn)
        if not _goes_by_samples(shorter, less):
            raise Alone(_NO_PARTS)


# Parts of a batch ------------------------------------------------------------------------------------

_NO_PARTS = "what is kept of a batch is not one entry for each of its samples"


def _whole(parts: Sequence[PredictedPart]) -> Any:
    """A batch's output, joined from its parts. It is that of the whole batch if each part has an entry for
    every sample, and all have one shape."""
    if parts and all(_goes_by_samples(part.output, part.samples) for part in parts):
        whole = _join([part.output for part in parts])
        if _goes_by_samples(whole, sum(part.samples for part in parts)):
            return whole
    raise Alone(_NO_PARTS)


def _goes_by_samples(value: Any, samples: int) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim > 0 and len(value) == samples
    if isinstance(value, list) and not _holds_tensors(value):
        return len(value) == samples
    if is_dataclass(value):
        return all(_goes_by_samples(getattr(value, each.name), samples) for each in fields(value))
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, (Mapping, list, tuple)):
        return all(_goes_by_samples(each, samples) for each in inside)
    return False


# What a model is called with -------------------------------------------------------------------------


def output_of(model: nn.Module, validate: Callable[[Any], Any] | None, batch: Any) -> Any:
    """`model(x)` if the batch is x, (x,) or (x, y); otherwise the output of the validation step."""
    __tracebackhide__ = True
    if isinstance(batch, Tensor):
        return model(batch)
    pair = isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields") and len(batch) in (1, 2)
    if pair and isinstance(batch[0], Tensor):
        return model(batch[0])
    if validate is None:
        raise StepError(f"predict() cannot tell what to give the model of {_said(batch)}: {_REMEDY}")
    item = validate(batch)
    for name in ("logits", "output"):
        if (output := getattr(item, name, None)) is not None:
            return output
    raise StepError(
        f"predict() goes by the validation step where a batch is {_said(batch)}, and that step returned a "
        f"{type(item).__name__} without `output` or `logits`: {_REMEDY}"
    )


_REMEDY = "say how with step=, a function fn(model, batch) that returns the output"


def _said(batch: Any) -> str:
    parts = f" of {len(batch)}" if isinstance(batch, (tuple, list, Mapping)) else ""
    return a_kind(batch) + parts


def as_batches(loader: Any) -> Any:
    """Wrap a tensor as one batch: walked as a loader, it would give its rows, without the sample
    dimension."""
    return [loader] if isinstance(loader, Tensor) else loader


def require_functions(function: Any, step: Any) -> None:
    """Raise if the user gave `predict` something that it cannot call.

    Raises:
        ConfigurationError: with what to give instead.
    """
    asked = {
        "function": (function, ("the output", "the batch"), "lambda output, batch: output.argmax(1)"),
        "step": (step, ("the model", "the batch"), 'lambda model, batch: model(batch["x"])'),
    }
    wrong = []
    for name, (given, arguments, example) in asked.items():
        if given is not None and not callable(given):
            wrong.append(f"{name} is {given!r:.60}, and no function; write {example}")
        elif given is not None and (why := wrong_arguments(given, *arguments)):
            wrong.append(f"{name}: {why}; write {example}")
    if wrong:
        raise ConfigurationError(wrong, "predict() cannot use this")


# Gathering -------------------------------------------------------------------------------------------


class Gathered:
    """Outputs on the host. An accelerator's outputs are copied while it computes the next ones.

    >>> gathered = Gathered()
    >>> for size in (3, 2):
    ...     gathered.add({"scores": torch.zeros(size, 4), "ids": ["a"] * size})
    >>> whole = gathered.joined()
    >>> whole["scores"].shape, whole["ids"]
    (torch.Size([5, 4]), ['a', 'a', 'a', 'a', 'a'])
    """

    def __init__(self) -> None:
        self._outputs: list[Any] = []
        self._block = _Copies()
        self._before = _Copies()

    def add(self, output: Any) -> None:
        """Take a batch's output. On an accelerator this does not wait for the output."""
        self._outputs.append(mapped(output, self._copied))
        if self._block.bytes >= BLOCK:
            self._before.land()
            self._block.left()
            self._before, self._block = self._block, _Copies()

    def joined(self) -> Any:
        """Return all batches as one value."""
        return _join(self.landed())

    def landed(self) -> list[Any]:
        """Return the batches since the last call, each one separately."""
        self._before.land()
        self._block.left()
        self._block.land()
        outputs, self._outputs = [mapped(each, _landed, _Copy) for each in self._outputs], []
        return outputs

    def _copied(self, tensor: Tensor) -> Any:
        # A copy on the CPU, too: the output may be a view of something larger, or of a buffer that is used
        # again.
        tensor = tensor.detach()
        if tensor.device.type == "cpu":
            return _Copy(tensor.clone())
        # torch copies into pinned memory here, so the call returns at once.
        copied = _Copy(tensor.to("cpu", non_blocking=True))
        self._block.add(copied, tensor.device)
        return copied


@dataclass(slots=True)
class _Copy:
    """A tensor on its way to the host."""

    tensor: Tensor


@dataclass(slots=True)
class _Copies:
    """Some copies that are waited for together."""

    copies: list[_Copy] = field(default_factory=list)
    bytes: int = 0
    device: torch.device | None = None
    _event: Any = None

    def add(self, copied: _Copy, device: torch.device) -> None:
        self.copies.append(copied)
        self.bytes += copied.tensor.nbytes
        self.device = device

    def left(self) -> None:
        """Mark that all copies are queued."""
        if self.device is not None and self.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.device))

    def land(self) -> None:
        """Wait for the copies, and release their pinned memory, which is scarce."""
        if self._event is not None:
            self._event.synchronize()
        elif self.device is not None:
            torch.accelerator.synchronize(self.device)
        for copied in self.copies:
            copied.tensor = copied.tensor.clone()
        self.copies, self.bytes, self.device, self._event = [], 0, None, None


def _landed(leaf: Any) -> Any:
    return leaf.tensor if isinstance(leaf, _Copy) else leaf


def _join(batches: Sequence[Any]) -> Any:
    """Join batches of one shape into one value: tensors and arrays into one piece, lists one after the other,
    the parts of tuples and dicts each on its own; anything else as a list with an entry for each batch."""
    first = batches[0]
    if any(type(each) is not type(first) for each in batches):
        return list(batches)
    if isinstance(first, Tensor):
        return _joined_tensors(batches)
    if isinstance(first, np.ndarray):
        fits = first.ndim and len({(each.shape[1:], each.dtype) for each in batches}) == 1
        return np.concatenate(batches) if fits else list(batches)
    if isinstance(first, list) and not _holds_tensors(first):
        return [each for batch in batches for each in batch]
    if isinstance(first, (list, tuple)) and len({len(each) for each in batches}) == 1:
        parts = [_join(part) for part in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping) and all(each.keys() == first.keys() for each in batches):
        return {key: _join([each[key] for each in batches]) for key in first}
    if is_dataclass(first):
        return _joined_records(batches)
    return list(batches)


def _joined_tensors(batches: Sequence[Tensor]) -> Any:
    """Join into one piece. Tensors without dimensions are stacked; those of different lengths stay a list."""
    first = batches[0]
    if not all(each.dtype == first.dtype and each.shape[1:] == first.shape[1:] for each in batches):
        return list(batches)
    if any((each.ndim == 0) != (first.ndim == 0) for each in batches):
        return list(batches)
    return torch.cat(list(batches)) if first.ndim else torch.stack(list(batches))


def _joined_records(batches: Sequence[Any]) -> Any:
    other = copy.copy(batches[0])
    for each in fields(other):
        object.__setattr__(other, each.name, _join([getattr(batch, each.name) for batch in batches]))
    return other


def _holds_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(each, (Tensor, tuple, list, Mapping)) for each in values)

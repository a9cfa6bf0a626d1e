"""Copies of the weights, made while the next forward and backward compute.

Copying a state of 400 MB takes 50 ms and more. But between two optimizer steps nobody writes to the
parameters, nor to what the optimizer remembers of them; so they are copied by a thread meanwhile, and the
optimizer waits before it steps. What a forward pass can change (buffers, random generators, gradients) is
copied at once. A small state is copied at once, too: a thread would cost more.

A training step that writes to parameters itself (weight clipping, say) breaks the premise. It is found
out, by the tensors' versions and by a sample of values taken before; such a copy is thrown away, and from
then on this learner's copies are made at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..store.workers import hand_over
from .copy_memory import CopyMemory
from .state import Copy, copied

LARGE = 32 << 20
"""Bytes from which a thread is worth it: copying less takes under 4 ms."""
_WATCHED = 8
"""How many tensors are compared with what they were: the largest, and as many spread over the others."""
_PLACES, _TOGETHER = 16, 4
"""At how many places of each, and how many values at one. A place is a line of the processor's cache that
has to come from memory, and four values in it cost what one does. Twice as much by 64 places of each."""


class Snapshots:
    """Takes copies for one optimizer, one at a time."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.deferring = True
        self._memory = CopyMemory()
        self._copying: _Copying | None = None
        self._hook: Any = None

    def begin(self) -> Copy:
        """A function that gives tensors' copies, to be filled by `go`."""
        self.settle()
        self._memory.open()
        self._copying = _Copying(self._memory)
        return self._copying.take_all

    def go(self) -> Pending:
        """All tensors were named: copy them, at once or while training goes on."""
        copying = self._copying
        assert copying is not None
        if not self.deferring or copying.nbytes < LARGE:
            copying.run()
            self._copying = None
        else:
            self._hook = self._hook or self.optimizer.register_step_pre_hook(self._before_step)
            copying.start()
        return Pending(copying)

    def settle(self) -> None:
        """Wait for the copy under way. Before anybody changes the weights."""
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.wait()
            self.deferring = not copying.torn

    def tidy(self) -> None:
        """At a boundary: take the hook off again; torch forbids it while the hook runs."""
        if self._hook is not None and self._copying is None:
            self._hook.remove()
            self._hook = None
        self._memory.close_if_unused()

    def rest(self) -> None:
        """At the end of a run: nothing is kept for a next copy."""
        self.tidy()
        self._memory.close()

    def _before_step(self, *_: Any) -> None:
        self.settle()


class Pending:
    """A copy that may still be under way."""

    def __init__(self, copying: _Copying) -> None:
        self._copying = copying

    def wait(self) -> bool:
        """Wait for it; False where the step wrote to the weights meanwhile. From any thread."""
        self._copying.wait()
        return not self._copying.torn


class _Copying:
    def __init__(self, memory: CopyMemory) -> None:
        self._memory = memory
        self.nbytes = 0
        self.torn = False
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._versions: list[int] = []
        self._watched: list[tuple[Tensor, Tensor]] = []
        self._samples: list[Tensor] = []
        self._known: dict[int, Tensor] = {}
        self._work_done: Future[None] | None = None

    def take_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self._take(tensor) for tensor in tensors]

    def _take(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cpu:
            return copied(tensor)
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        live = tensor.detach()  # its memory, even where the step gives the parameter another
        copy = self._memory.like(live)
        self._known[id(tensor)] = copy
        self._pairs.append((copy, live))
        self.nbytes += live.nbytes
        return copy

    def run(self) -> None:
        if self._pairs:
            torch._foreach_copy_([copy for copy, _ in self._pairs], [live for _, live in self._pairs])
        self._forget()

    def start(self) -> None:
        self._versions = [live._version for _, live in self._pairs]
        self._watched = _watched(self._pairs)
        self._samples = _samples([live for _, live in self._watched])
        self.torn = True  # until it is known to be whole
        self._work_done = hand_over(self._work)

    def wait(self) -> None:
        if self._work_done is not None:
            self._work_done.exception()

    def _work(self) -> None:
        # In pieces: the list call holds Python's lock while it starts.
        for begin in range(0, len(self._pairs), 64):
            part = self._pairs[begin : begin + 64]
            torch._foreach_copy_([copy for copy, _ in part], [live for _, live in part])
        same = [live._version for _, live in self._pairs] == self._versions
        now = _samples([copy for copy, _ in self._watched])
        self.torn = not (same and all(map(_same_bytes, now, self._samples)))
        self._forget()

    def _forget(self) -> None:
        self._pairs, self._known, self._watched, self._samples = [], {}, [], []


def _watched(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The tensors that are looked at, with their copies."""
    by_size = sorted([pair for pair in pairs if pair[1].is_contiguous()], key=lambda pair: -pair[1].nbytes)
    others = by_size[_WATCHED:]
    return by_size[:_WATCHED] + others[:: max(1, -(-len(others) // _WATCHED))]


def _samples(tensors: list[Tensor]) -> list[Tensor]:
    """Some of the values of contiguous tensors, or all where there are few; copied in a call or two."""
    alike: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
    for tensor in tensors:
        values = tensor.numel()
        apart = values // _PLACES
        spread = apart >= _TOGETHER
        shape, strides = ((_PLACES, _TOGETHER), (apart, 1)) if spread else ((values,), (1,))
        alike.setdefault((tensor.dtype, spread), []).append(tensor.as_strided(shape, strides))
    return [torch.cat(views) for views in alike.values()]


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """A NaN equals itself."""
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))

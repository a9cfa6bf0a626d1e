"""Copies of the weights, made while the next forward and backward compute.

A copy of a 400 MB state takes 50 ms or more. But between two optimizer steps nothing writes to the
parameters, or to what the optimizer keeps for them. So a thread copies them in that time. Every optimizer
that changes one of them waits for the copy before it steps, no matter which code calls it. What a forward
pass can change (buffers, random generators, gradients) is copied at once. A small state is copied at once,
too: a thread would cost more.

A training step that writes to parameters without an optimizer (weight clipping, an average of its own) breaks
this assumption. So the first copy is made at once, and compared with the weights just before the first
optimizer step. If they differ, all copies are made at once. A step that begins to do so later is found by the
tensors' versions, and by a sample of values taken before. Such a copy is void, and is made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..store.background import hand_over
from .device_copies import CopyMemory, copy_to_host, size_of
from .state import Copy

LARGE = 32 << 20
"""Bytes from which a thread is worth it: a smaller copy takes under 4 ms."""
_WATCHED = 8
"""How many tensors are compared with their earlier values: the largest, and as many spread over the
others."""
_PLACES, _TOGETHER = 16, 4
"""The number of places in each tensor, and the number of values at each place. A place is a line of the
processor's cache that has to come from memory; four values in it cost the same as one. With 64 places it
would cost twice as much."""

WRITES_ITSELF = (
    "the training step writes to parameters outside the optimizer, so they cannot be copied while it runs; "
    "from now on training waits for its copies"
)


class Snapshots:
    """Takes copies, one at a time."""

    def __init__(self) -> None:
        self.deferring = True
        self._sure = False
        """Whether a step was seen that left the weights to optimizers."""
        self._memory = CopyMemory()
        self._copying: _Copying | None = None
        self._hook: Any = None
        self._thread = 0

    def begin(self) -> Copy:
        """Return a function that gives tensors' copies; `go` fills them."""
        self.settle()
        self._memory.open()
        self._copying, self._thread = _Copying(self._memory), get_ident()
        return self._copying.take_all

    def go(self) -> Pending:
        """Copy all tensors that were named, at once or while training goes on."""
        copying = self._copying
        assert copying is not None
        if not self.deferring or copying.nbytes < LARGE:
            copying.run()
            copying.forget()
            self._copying = None
        else:
            self._hook = self._hook or register_optimizer_step_pre_hook(self._before_step)
            copying.start(in_background=self._sure)
        return Pending(copying)

    def drop(self) -> None:
        """Forget what was begun: a part could not be copied."""
        self._copying = None

    @property
    def settled(self) -> bool:
        """Whether no copy is under way."""
        return self._copying is None

    def settle(self) -> None:
        """Wait for the copy under way. Call it before the weights change."""
        copying, self._copying = self._copying, None
        if copying is not None:
            self._sure = self.deferring = copying.judged()

    @property
    def idle(self) -> bool:
        """Whether no copy is under way or waits to be judged."""
        return self._copying is None

    def tidy(self) -> None:
        """At a boundary: remove the hook; torch forbids it while the hook runs."""
        if self._copying is not None and self._copying.done:
            self.settle()
        if self._hook is not None and self._copying is None:
            self._hook.remove()
            self._hook = None
        self._memory.close_if_unused()

    def rest(self) -> None:
        """At the end of a run: keep nothing for a next copy."""
        self.tidy()
        self._memory.close()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Runs before a step of any optimizer in the process, in any thread."""
        copying = self._copying
        if copying is None or not copying.moved_by(optimizer):
            return
        copying.wait()
        if get_ident() == self._thread:  # else the weights may change during the look
            self.settle()


class Pending:
    """A copy that may still be under way."""

    def __init__(self, copying: _Copying) -> None:
        self._copying = copying

    def wait(self) -> bool:
        """Wait for the copy; False if the step wrote to the weights during it. Any thread may call it."""
        self._copying.wait()
        return not self._copying.torn


class _Copying:
    def __init__(self, memory: CopyMemory) -> None:
        self._memory = memory
        self.nbytes = 0
        self.torn = False
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._lives: list[Tensor] = []
        self._places: set[int] = set()
        self._versions: list[int] = []
        self._watched: list[tuple[Tensor, Tensor]] = []
        self._samples: list[Tensor] = []
        self._known: dict[int, Tensor] = {}
        self._work_done: Future[None] | None = None

    def take_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        there = [tensor for tensor in tensors if not tensor.is_cpu]
        copies = iter(copy_to_host(there) if there else ())
        return [self._take(tensor) if tensor.is_cpu else next(copies) for tensor in tensors]

    def _take(self, tensor: Tensor) -> Tensor:
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        live = tensor.detach()  # its memory, even if the step replaces the parameter's
        copy = self._memory.like(live)
        self._known[id(tensor)] = copy
        self._pairs.append((copy, live))
        self.nbytes += size_of(live)
        return copy

    def run(self) -> None:
        if self._pairs:
            torch._foreach_copy_([copy for copy, _ in self._pairs], [live for _, live in self._pairs])

    def start(self, in_background: bool) -> None:
        self._lives = [live for _, live in self._pairs]
        self._versions = [live._version for live in self._lives]
        self._places = set(map(_place, self._lives))
        if not in_background:
            self.run()
            return
        self._watched = _watched(self._pairs)
        self._samples = _samples([live for _, live in self._watched])
        self.torn = True  # until the copy is known to be whole
        self._work_done = hand_over(self._work)

    @property
    def done(self) -> bool:
        return self._work_done is None or self._work_done.done()

    def wait(self) -> None:
        if self._work_done is not None:
            self._work_done.exception()

    def moved_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has one of the copied tensors, or another one in the same memory."""
        places = self._places
        return any(_place(p) in places for group in optimizer.param_groups for p in group["params"])

    def judged(self) -> bool:
        """Before the weights change: whether the step has left them alone. The training thread calls it; it
        writes to none of them at this moment. What it wrote before shows in the versions."""
        self.wait()
        clean = self._same_versions()
        if self._work_done is None:
            clean = clean and all(_same_bytes(copy, live) for copy, live in self._pairs)
        elif not clean:
            self.torn = True
        self.forget()
        return clean and not self.torn

    def _work(self) -> None:
        # In pieces: a list call holds Python's lock while it starts.
        for begin in range(0, len(self._pairs), 64):
            part = self._pairs[begin : begin + 64]
            torch._foreach_copy_([copy for copy, _ in part], [live for _, live in part])
        now = _samples([copy for copy, _ in self._watched])
        self.torn = not (self._same_versions() and all(map(_same_bytes, now, self._samples)))
        self.forget()

    def _same_versions(self) -> bool:
        return [live._version for live in self._lives] == self._versions

    def forget(self) -> None:
        """Drop the copies: the state has them now."""
        self._pairs, self._known, self._watched, self._samples = [], {}, [], []


def _place(tensor: Tensor) -> int:
    """The address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _watched(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The tensors that are compared, with their copies."""
    by_size = sorted([pair for pair in pairs if pair[1].is_contiguous()], key=lambda pair: -pair[1].nbytes)
    others = by_size[_WATCHED:]
    return by_size[:_WATCHED] + others[:: max(1, -(-len(others) // _WATCHED))]


def _samples(tensors: list[Tensor]) -> list[Tensor]:
    """Some of the values of contiguous tensors, or all of them if there are few; copied in one or two
    calls."""
    alike: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
    for tensor in tensors:
        values = tensor.numel()
        apart = values // _PLACES
        spread = apart >= _TOGETHER
        shape, strides = ((_PLACES, _TOGETHER), (apart, 1)) if spread else ((values,), (1,))
        alike.setdefault((tensor.dtype, spread), []).append(tensor.as_strided(shape, strides))
    return [torch.cat(views) for views in alike.values()]


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Compare bytes: a NaN equals itself."""
    return torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)

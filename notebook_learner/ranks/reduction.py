"""The sums that ranks make together: gradients, the weights behind them, and rank 0's buffers.

This is not torch's DistributedDataParallel. A step here may run its backward pass itself, may leave
parameters out, and may have no sample on some rank. Its weight is known only after the forward pass. After an
exception the next step has to be possible. So gradients are summed when a window closes: weighted, with one
division for all ranks, by the same allreduce of torch.distributed. As in torch, buckets of gradients are sent
while the backward pass goes on.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from importlib import import_module
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NotebookLearnerError, StepError
from .driven_steps import SPARSE, DrivenSteps

dist: Any = import_module("torch.distributed")  # torch has no types for most of it

_FIRST, _REST = 1 << 20, 25 << 20
"""Bytes of a full bucket. The first one is smaller, so that the first sum begins early, as in torch."""
_ALONE = 1 << 20
"""Bytes from which a gradient is summed in place: to copy it into a bucket and back takes longer than to
start a separate sum."""
_LARGE = 1 << 16
"""Numbers in a tensor from which reading memory costs more than calls, so that one read less is faster."""
_PIECE = timedelta(seconds=0.5)
"""How long a wait on the host lasts before Python checks whether the user has interrupted it."""


class Severed(NotebookLearnerError):
    """Another rank does not answer any more, so this one's step cannot be finished."""


class Reducer:
    """Sums gradients over the ranks of a group."""

    def __init__(self, group: Any, reference: float) -> None:
        self.group = group
        self.reference = reference
        self.waited = 0.0
        """Seconds in which this rank waited for others; on CUDA the device waits, and not the host."""
        self._buckets: list[_Bucket | _Alone] = []
        self._known: list[nn.Parameter] = []
        world = 1 if group is None else group.size()
        self.driven: DrivenSteps | None = DrivenSteps(self._sum, world)
        self._last = _GradientSum()
        """The last sum that does not belong to a bucket."""
        self._next = 0
        self._total: Tensor | float = 0.0

    def settles(self, seconds: float) -> bool:
        """Whether the pending sums finish within so many seconds. Until they do, or their ranks are gone,
        this rank cannot leave the group: leaving waits as well."""
        until = perf_counter() + seconds
        pending = [each.work for each in (*self._buckets, self._last) if each.work is not None]
        while not all(work.is_completed() for work in pending):
            if perf_counter() > until:
                return False
            sleep(0.05)
        return True

    def sever(self) -> None:
        """Leave the group: ranks that wait for this rank notice that their connection ends."""
        for bucket in self._buckets:
            bucket.forget()
        if self.driven is not None:
            self.driven.forget()
        self._last.work = None
        self._buckets, self._known, self.group = [], [], None

    def coming(self, parameters: list[nn.Parameter], total: Tensor | float) -> None:
        """Send each bucket of gradients as soon as it is full."""
        self._arrange(parameters)
        self._total = total
        for bucket in self._buckets:
            bucket.arm()
        self._next = 0

    def add_up(self, parameters: list[nn.Parameter], total: Tensor | float, mean: bool) -> Tensor:
        """Make each gradient the sum or the mean over all ranks; return the sum of their weights."""
        if any(bucket.armed for bucket in self._buckets):
            self._arrange(parameters)
        else:
            self.coming(parameters, total)
        began = perf_counter()
        try:
            while self._next < len(self._buckets):  # a parameter that the step did not use
                self._send_next()
            tail = self._along
            if tail is None:
                tail = self._tail()
                self._last.begin(self.group.allreduce([tail]), tail)
                self._last.wait()
            for bucket in self._buckets:
                bucket.wait()
        except RuntimeError as error:
            raise Severed(f"another rank does not answer: {error}") from error
        finally:
            self.waited += perf_counter() - began
            for bucket in self._buckets:
                bucket.armed = False
        like = self._known[0]
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        weight = tail[0].to(kind, copy=True)  # it may be in one tensor with gradients that are divided next
        self._take(tail, weight + (weight == 0) if mean else None)  # without a token there is no gradient
        return weight

    def made(self) -> None:
        """Note that a backward pass is over; its gradients are summed once their window closes."""

    def moved(self) -> None:
        """Note that the optimizer has moved the weights."""

    def norm(self, norm: Tensor) -> Tensor:
        """Return the norm over all ranks: here this rank's own, since every rank has the summed gradients."""
        return norm

    def adopt(self) -> None:
        """Accept gradients that a step has made itself: they are weighted when they are summed."""

    def share(self, tensors: list[Tensor]) -> None:
        """Copy rank 0's values of these tensors to all ranks."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            by_kind.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        for alike in by_kind.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            sent = flat.view(torch.uint8) if _odd(flat) else flat
            self._do(partial(self.group.broadcast, [sent], options), sent)
            with torch.no_grad():
                for tensor, part in zip(alike, torch.split(flat, [t.numel() for t in alike]), strict=True):
                    tensor.copy_(part.view(tensor.shape))

    def _sum(self, tensor: Tensor) -> None:
        self._do(lambda: self.group.allreduce([tensor]), tensor)

    def _do(self, begin: Any, tensor: Tensor) -> None:
        began = perf_counter()
        try:
            if self.group is None:
                raise Severed("this rank has left its group")
            self._last.begin(begin(), tensor)
            self._last.wait()
        except RuntimeError as error:
            raise Severed(f"another rank does not answer: {error}") from error
        finally:
            self.waited += perf_counter() - began

    # Buckets -----------------------------------------------------------------------------------------

    def _arrange(self, parameters: list[nn.Parameter]) -> None:
        """Make buckets in the order in which gradients are made: roughly the reverse of the parameters'.
        Small gradients wait for the next small ones, and the last bucket of them also carries the tail."""
        if [id(p) for p in parameters] == [id(p) for p in self._known]:
            return
        for bucket in self._buckets:
            bucket.forget()
        self._known, self._buckets = list(parameters), []
        held: list[nn.Parameter] = []
        size, most = 0, _FIRST
        for parameter in reversed([p for p in parameters if p.requires_grad]):
            if parameter.nbytes >= _ALONE:
                self._buckets.append(_Alone([parameter], self._arrived))
                continue
            if size >= most or (held and held[-1].dtype != parameter.dtype):
                self._buckets.append(_Bucket(held, self._arrived))
                held, size, most = [], 0, _REST
            held.append(parameter)
            size += parameter.nbytes
        if held:
            self._buckets.append(_Bucket(held, self._arrived, more=1 + len(self._known)))

    @property
    def _along(self) -> Tensor | None:
        """The place for the tail in the last bucket, or None: a separate sum would take as long as that of a
        small model's gradients. A half-precision bucket cannot hold it."""
        last = self._buckets[-1] if self._buckets else None
        if not isinstance(last, _Bucket) or last.flat.dtype not in (torch.float32, torch.float64):
            return None
        return last.more

    def _arrived(self) -> None:
        """Send the buckets that are full, in the same order on all ranks."""
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        if self._next == len(self._buckets) and self._along is not None:
            tail = self._tail()
            self._along[: len(tail)].copy_(tail)
        bucket.send(self.group)

    def _tail(self) -> Tensor:
        """The weight, and which parameters have a gradient on this rank."""
        total = self._total
        where = self._known[0].device
        there = [float(p.grad is not None) for bucket in self._buckets for p in bucket.parameters]
        if isinstance(total, Tensor):
            rest = torch.tensor(there, dtype=torch.float64, device=where)
            return torch.cat([total.detach().reshape(1).to(where, torch.float64), rest])
        return torch.tensor([float(total), *there], dtype=torch.float64, device=where)

    def _take(self, tail: Tensor, divisor: Tensor | None) -> None:
        """Take the sums. A parameter without a gradient on all ranks stays without one; the flags for that
        are read only if this rank lacks a gradient."""
        flags: list[float] | None = None
        place = 1
        for bucket in self._buckets:
            count = len(bucket.parameters)
            if any(p.grad is None for p in bucket.parameters):
                flags = tail.tolist() if flags is None else flags
                bucket.take(flags[place : place + count], divisor)
            else:
                bucket.take(None, divisor)
            place += count


class _GradientSum:
    """A sum that may be pending on all ranks."""

    work: Any = None

    def begin(self, work: Any, tensor: Tensor) -> None:
        self.work, self._on_host = work, tensor.device.type == "cpu"

    def wait(self) -> None:
        """Wait in pieces on the host: a wait in C++ ignores an interrupt, and another rank may hang."""
        if self._on_host:
            while not self._has_come():
                pass
        else:
            self.work.wait()
        self.work = None

    def _has_come(self) -> bool:
        began = perf_counter()
        try:
            self.work.wait(_PIECE)
        except RuntimeError:
            if self.work.is_completed():
                self.work.wait()  # it has finished meanwhile, or raises the reason why not
            elif perf_counter() - began < _PIECE.total_seconds():
                self.work = None  # it has failed; gloo's reduce_scatter never reports its end
                raise
            else:
                return False  # this piece of the wait is over; the sum goes on
        return True


class _Together(_GradientSum):
    """Parameters whose gradients are summed together, as soon as all of them are made."""

    def __init__(self, parameters: list[nn.Parameter], arrived: Any) -> None:
        self.parameters = parameters
        self.armed = False
        self.missing = 0
        self._there: set[int] = set()
        self._arrived = arrived
        hooked: list[Any] = list(parameters)
        self._hooks = [each.register_post_accumulate_grad_hook(self._made) for each in hooked]

    def arm(self) -> None:
        self.armed, self.missing, self.work = True, len(self.parameters), None
        self._there.clear()

    def forget(self) -> None:
        self.work = None
        for hook in self._hooks:
            hook.remove()

    def _made(self, parameter: nn.Parameter) -> None:
        if not self.armed:
            return
        if id(parameter) in self._there:
            raise StepError(
                "a parameter got its gradient in several pieces, and the first one is already on its way to "
                "the other devices; checkpoint(..., use_reentrant=False) makes one piece of them"
            )
        self._there.add(id(parameter))
        self.missing -= 1
        if not self.missing:
            self._arrived()


class _Alone(_Together):
    """A large gradient, summed in place."""

    _sum: Tensor | None = None

    def send(self, group: Any) -> None:
        (parameter,) = self.parameters
        grad = _dense(parameter.grad)
        self._sum = torch.zeros_like(parameter) if grad is None else grad.detach()
        self._sum = self._sum.contiguous()  # in another memory layout it is summed in a copy
        self.missing = 0
        self.begin(group.allreduce([self._sum]), self._sum)

    def take(self, there: list[float] | None, divisor: Tensor | None) -> None:
        (parameter,), total = self.parameters, self._sum
        assert total is not None
        self._sum = None
        if there is not None and not there[0]:
            return
        if divisor is not None:
            total.div_(divisor)
        if parameter.grad is None:
            parameter.grad = total
        elif parameter.grad.data_ptr() != total.data_ptr():
            parameter.grad.copy_(total)


class _Bucket(_Together):
    """Smaller gradients, next to each other in one tensor."""

    def __init__(self, parameters: list[nn.Parameter], arrived: Any, more: int = 0) -> None:
        super().__init__(parameters, arrived)
        first = parameters[0]
        sizes = [p.numel() for p in parameters]
        self.flat = torch.zeros(sum(sizes) + more, dtype=first.dtype, device=first.device)
        *parts, self.more = torch.split(self.flat, [*sizes, more])
        self._parts = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
        self._large = len(self.flat) > _LARGE * len(parameters)

    def send(self, group: Any) -> None:
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            grad = _dense(parameter.grad)
            if grad is None:
                part.zero_()
            else:
                part.copy_(grad)
        self.missing = 0
        self.begin(group.allreduce([self.flat]), self.flat)

    def take(self, there: list[float] | None, divisor: Tensor | None) -> None:
        """Put the sums into the gradients. A parameter without a gradient on all ranks stays without one."""
        if there is None:
            grads = [p.grad for p in self.parameters if p.grad is not None]
            if divisor is not None and self._large:
                for grad, part in zip(grads, self._parts, strict=True):
                    torch.div(part, divisor, out=grad)
                return
        if divisor is not None:
            self.flat.div_(divisor)
        if there is None:
            torch._foreach_copy_(grads, self._parts)
            return
        for parameter, part, ranks in zip(self.parameters, self._parts, there, strict=True):
            if ranks and parameter.grad is None:
                parameter.grad = part.clone()
            elif ranks and parameter.grad is not None:
                parameter.grad.copy_(part)


def _dense(grad: Tensor | None) -> Tensor | None:
    if grad is not None and grad.layout is not torch.strided:
        raise StepError(SPARSE)
    return grad


def _odd(tensor: Tensor) -> bool:
    """Whether not every backend can send this kind of tensor; all of them can send its bytes."""
    return tensor.dtype not in (torch.float32, torch.float64, torch.int64, torch.int32)


def reference_for(loader: Any, world: int) -> float:
    """A power of two near a rank's share of a batch, so that gradients are of their usual size while they are
    summed; a loss scale of fp16 depends on that."""
    size = getattr(loader, "batch_size", None)
    share = size // world if isinstance(size, int) else 1
    return float(1 << (max(share, 1).bit_length() - 1))

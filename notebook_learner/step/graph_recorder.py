"""What records the kernels of a step and plays them again: CUDA graphs, where there is a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

Play = Callable[[], None]


class GraphRecorder(Protocol):
    """Records work of one device."""

    def apart(self) -> Any:
        """A context for steps that are not played: what they leave behind must not be in the way of a
        recording."""

    def record(self, work: Callable[[], Any]) -> tuple[Any, Play]:
        """What `work` gives, and what computes it. Nothing is computed before that is called; each call
        reads and writes the same memory."""


class CudaGraphs:
    """CUDA graphs of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # A parameter's gradient is accumulated on the stream of the step that first asked for it, for as long
        # as somebody holds that step's graph; and a recording may wait for no other stream than its own.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """On the stream that is recorded from, in order with the one of everybody else."""
        everybodys = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(everybodys)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            everybodys.wait_stream(self._stream)

    def record(self, work: Callable[[], Any]) -> tuple[Any, Play]:
        """Other threads may use the device meanwhile: a checkpoint is copied, a panel asks for memory."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            everybodys = torch.cuda.current_stream()
            try:
                with self._recording(graph):
                    made = work()
            except BaseException:
                self._free_generator()
                raise
            finally:
                torch.cuda.set_stream(everybodys)  # torch leaves its own where a recording fails
        return made, graph.replay

    def _recording(self, graph: torch.cuda.CUDAGraph) -> Any:
        return torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")

    def _free_generator(self) -> None:
        """Where a recording fails, torch (2.11) leaves the device's generator as if it were being recorded,
        and the next dropout raises an error. A recording that succeeds sets it right. To give the generator
        another state would, too, but graphs of other learners draw from this one."""
        with suppress(RuntimeError), self._recording(torch.cuda.CUDAGraph()):
            torch.zeros(1, device=self._device)


RECORDERS: dict[str, Callable[[torch.device], GraphRecorder]] = {"cuda": CudaGraphs}
"""By the kind of device."""


def make_recordable(optimizer: Optimizer) -> None:
    """Have an optimizer keep on the device what changes with every step, so that a recording sees it: step
    counters (`capturable`), and rates, which a schedule then writes into. Optimizers that know no such
    option read their rate when they are recorded. To be called again after anything was put back."""
    for group in optimizer.param_groups:
        if not (group["params"] and (group.get("fused") or "capturable" in group)):
            continue
        if "capturable" in group:
            group["capturable"] = True
        first = group["params"][0]
        if isinstance(group["lr"], Tensor):
            group["lr"] = group["lr"].to(first.device)
        else:
            kind = torch.float64 if first.dtype == torch.float64 else torch.float32
            group["lr"] = torch.tensor(group["lr"], dtype=kind, device=first.device)
        for parameter in group["params"]:
            held = optimizer.state.get(parameter, {})
            if isinstance(count := held.get("step"), Tensor) and count.device != parameter.device:
                held["step"] = count.to(parameter.device)

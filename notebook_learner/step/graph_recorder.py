"""Records the kernels of a step and plays them again: CUDA graphs, if there is a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

Play = Callable[[], None]


class GraphRecorder(Protocol):
    """Records work on one device."""

    def apart(self) -> Any:
        """A context for steps that are not played: what they leave behind must not disturb a recording."""

    def record(self, work: Callable[[], Any]) -> tuple[Any, Play]:
        """Return what `work` gives, and a function that computes it. Nothing is computed before that function
        is called. Each call reads and writes the same memory."""


class CudaGraphs:
    """CUDA graphs of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # A parameter's gradient is accumulated on the stream of the step that first needed it, as long as
        # that step's graph exists. And a recording may wait for no other stream than its own.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, work goes to the stream of the recordings, in order with the usual stream."""
        everybodys = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(everybodys)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            everybodys.wait_stream(self._stream)

    def record(self, work: Callable[[], Any]) -> tuple[Any, Play]:
        """Other threads may use the device during this: to copy a checkpoint, or to ask for the memory in
        use."""
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
                torch.cuda.set_stream(everybodys)  # torch leaves its own if a recording fails
        return made, graph.replay

    def _recording(self, graph: torch.cuda.CUDAGraph) -> Any:
        return torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")

    def _free_generator(self) -> None:
        """After a recording that failed, torch (2.11) treats the device's generator as if it were being
        recorded, and the next dropout raises an error. A recording that succeeds repairs this. A new state
        for the generator would repair it, too, but graphs of other learners draw from this one."""
        with suppress(RuntimeError), self._recording(torch.cuda.CUDAGraph()):
            torch.zeros(1, device=self._device)


RECORDERS: dict[str, Callable[[torch.device], GraphRecorder]] = {"cuda": CudaGraphs}
"""By the kind of device."""


def make_recordable(optimizer: Optimizer) -> None:
    """Make an optimizer keep on the device what changes with every step, so that a recording includes it:
    step counters (`capturable`), and rates, which a schedule then writes into. Other optimizers read their
    rate when they are recorded. Call it again after anything was put back."""
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

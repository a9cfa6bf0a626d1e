"""`.graph()`: a training step whose kernels are recorded once, and then played without any Python.

A small model's step is a few hundred kernels of some microseconds each. Python takes longer to start them
than the device takes to run them. Played, they all start in one call.

A recording holds forward, backward, clipping and the optimizer, for batches of one shape. Some steps are
still taken one by one: the first ones of a run, batches of another shape (the last one of an epoch), and
observed steps. Nothing is different between two steps: the loop stops there, and states are captured and put
back in place. After every stop the recordings are dropped, since the user may have changed anything.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.batch import mapped
from ..data.rng import HostRng, capture_host, restore_host
from ..data.to_device import ToDevice
from ..errors import a_kind
from .output import TrainOutput, loss_of
from .step import TrainingStep
from .update import Update

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


WARM_UP = 3
"""Steps of a kind that are taken one by one before one is recorded. In the first, libraries choose their
algorithms and optimizers make their state. torch recommends the same number."""
MOST = 4
"""Recordings that are kept at a time. Each has its own memory, as much as a step needs."""
LONG = 200
"""Kinds of steps in a run, after which the user is warned that they are not recorded."""

Log = Callable[[str, Any], Any]


class _Unrecordable(Exception):
    """Says what cannot be recorded."""


class RecordedStep(TrainingStep):
    """A training step that is recorded, and played from then on.

    Args:
        function, way, precision, update: as of any training step.
        make: makes the recorder, when it is first needed.
        log: notes a value of a step by name, as `learner.log` does.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        way: ToDevice,
        precision: torch.dtype | None,
        update: Update,
        make: Callable[[torch.device], GraphRecorder],
        log: Log,
    ) -> None:
        super().__init__(function, way, precision, update)
        self.problem = ""
        """Why steps are taken one by one."""
        self._make = make
        self._log = log
        self._recorder: GraphRecorder | None = None
        self._recordings: dict[Hashable, _Recording] = {}
        self._seen: Counter[Hashable] = Counter()
        self._last: _Recording | None = None
        """The recording whose gradients the parameters have."""
        self._refused: Callable[[Any], Any] | None = None
        """The function that could not be recorded."""

    def look_again(self) -> None:
        """At the start of a run: the user may have changed anything."""
        super().look_again()
        self._recordings, self._last = {}, None
        self._seen.clear()
        if self.problem and self._refused is not self.function:
            self.problem = ""
        make_recordable(self.update.optimizer)

    def __call__(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        if self.update.drives and not self.problem:
            self._refuse("the step calls optimizer.step() itself")
        watched = self.look is not None or self.update.look is not None or self.update.hides
        if self.problem or watched or self.update.split > 1:
            return self._apart(batch, last)
        there = self._moved(batch) if self.moves else batch
        tensors: list[Tensor] = []
        try:
            kind = self._kind(there, tensors)
            recording = self._recordings.get(kind) or self._recorded(kind, there)
        except _Unrecordable as reason:
            self._refuse(str(reason))
            recording = None
        if recording is None:
            return self._apart(batch, last)
        self.stage = "recorded"
        return self._play(recording, tensors)

    def _apart(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        if self._recorder is None:
            self._recorder = self._make(self.device)
        self._last = None
        with self._recorder.apart():
            return super().__call__(batch, last)

    def _refuse(self, reason: str) -> None:
        self._recordings.clear()
        self.problem, self._refused = reason, self.function
        self.notice = f"graph(): steps are taken one by one, because {reason}"

    # Which steps are alike ---------------------------------------------------------------------------

    def _kind(self, batch: Any, tensors: list[Tensor]) -> Hashable:
        """What a recording depends on, except the values of the batch's tensors, which are listed."""
        update = self.update
        settings = [
            (name, id(value) if isinstance(value, Tensor) else value)
            for group in update.optimizer.param_groups
            for name, value in group.items()
            if name != "params"
        ]
        kind = (_form(batch, tensors), update.watch_norm, self.function, *settings)
        try:
            hash(kind)
        except TypeError as error:
            raise _Unrecordable(
                f"a setting of the batch or the optimizer is not a plain value: {error}"
            ) from None
        return kind

    def _recorded(self, kind: Hashable, batch: Any) -> _Recording | None:
        """A new recording, if there were enough steps of the kind."""
        if len(self._recordings) >= MOST:
            return None
        self._seen[kind] += 1
        if self._seen[kind] <= WARM_UP:
            if len(self._seen) < LONG:
                return None
            self._seen.clear()  # almost no two are alike
            if not self._recordings:
                raise _Unrecordable(
                    f"of {LONG} steps almost no two had batches of one shape and the same settings of the "
                    "optimizer; a rate that moves at every step has to be a tensor: Adam's becomes one, SGD "
                    "takes one with fused=True"
                )
            return None
        recording = self._recordings[kind] = self._record(batch)
        self._last = recording  # the recorded step has set the parameters' gradients
        return recording

    # Recording ---------------------------------------------------------------------------------------

    def _record(self, batch: Any) -> _Recording:
        update = self.update
        assert self._recorder is not None
        inputs: list[Tensor] = []

        def standing(tensor: Tensor) -> Tensor:
            inputs.append(tensor.clone())
            return inputs[-1]

        static = mapped(batch, standing)
        rates, norm, drawn = update.rates, update.norm, capture_host()
        moves, self.moves, self.notes = self.moves, False, []
        try:
            output, play = self._recorder.record(lambda: self._whole(static))
            _require_tensors(output)
            _require_nothing_drawn(drawn)
        except Exception as error:
            self._take_back(rates, norm)
            if isinstance(error, _Unrecordable):
                raise
            raise _Unrecordable(f"a step cannot be recorded: {_said(error)}") from None
        finally:
            notes, self.moves, self.notes = self.notes, moves, None
        measured, update.norm, update.rates, update.count = update.norm, norm, rates, 0
        gradients = [parameter.grad for parameter in update.parameters]
        kept = _with(output, Tensor.detach)  # without the graph: there is no second backward pass
        return _Recording(play, inputs, kept, measured if update.watch_norm else None, gradients, notes)

    def _whole(self, batch: Any) -> Any:
        """The step without the parts that depend on the number of steps: schedule and average come after
        it."""
        update = self.update
        update.begin()
        output = self._forward(batch)
        if type(output) is TrainOutput:
            gradients, output = output.grads, output.item
            update.adopt(gradients, output, batch)
        else:
            update.backward(loss_of(output), output, batch)
        update.move()
        return output

    def _take_back(self, rates: list[Any], norm: Tensor | None) -> None:
        """Undo what Python noted: nothing was computed."""
        update = self.update
        update.count, update.rates, update.norm = 0, rates, norm
        for parameter in update.parameters:
            parameter.grad = None

    # Playing -----------------------------------------------------------------------------------------

    def _play(self, recording: _Recording, tensors: list[Tensor]) -> Any:
        update = self.update
        if tensors:
            torch._foreach_copy_(recording.inputs, tensors)
        if update.watch_rates:
            update.note_rates()
        recording.play()
        if self._last is not recording:  # a step in between gave the parameters other gradients
            self._last = recording
            for parameter, gradient in zip(update.parameters, recording.gradients, strict=True):
                parameter.grad = gradient
        if recording.norm is not None:
            update.norm = recording.norm.clone()
        update.moved()
        for name, value in recording.notes:
            self._log(name, _own(value))
        return _with(recording.output, torch.clone)  # the next play writes into the recording's


@dataclass(slots=True)
class _Recording:
    """A step that can be played. The next play writes into all of its tensors."""

    play: Play
    inputs: list[Tensor]
    output: Any
    norm: Tensor | None
    gradients: list[Tensor | None]
    notes: list[tuple[str, Any]]
    """What the step logged by name."""


def _form(batch: Any, tensors: list[Tensor]) -> Hashable:
    """What a batch is, except the values of its tensors, which are added to the list."""
    if isinstance(batch, Tensor):
        tensors.append(batch)
        return batch.shape, batch.dtype, batch.stride()
    if isinstance(batch, (list, tuple)):
        return type(batch), *[_form(each, tensors) for each in batch]
    if isinstance(batch, Mapping):
        return type(batch), *[(key, _form(each, tensors)) for key, each in batch.items()]
    if is_dataclass(batch) and not isinstance(batch, type):
        return type(batch), *[_form(getattr(batch, each.name), tensors) for each in fields(batch)]
    if isinstance(batch, (int, float, str, bytes, type(None))):
        return batch
    raise _Unrecordable(f"its batches hold {a_kind(batch)}, which is not known to be made of tensors")


def _require_nothing_drawn(before: HostRng) -> None:
    """Raise if the step drew on the host; put the generators back, and say why."""
    now = capture_host()
    numpy = [(each.numpy["state"]["pos"], each.numpy["state"]["key"].tobytes()) for each in (before, now)]
    if before.python != now.python or numpy[0] != numpy[1] or not torch.equal(before.torch, now.torch):
        restore_host(before)
        raise _Unrecordable(
            "the step draws from a random generator of the host (random, numpy, or torch's for the CPU), and "
            "played it would draw the same each time; draw with device=..., or in the loader"
        )


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _require_tensors(output: Any) -> None:
    if not (is_dataclass(output) or hasattr(output, "__dict__")):
        raise _Unrecordable(f"its output is {a_kind(output)}, whose tensors are not known")


def _with(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The output with other tensors."""
    other = copy.copy(output)
    params = getattr(output, "__dataclass_params__", None)
    put = object.__setattr__ if params is not None and params.frozen else setattr
    names = list(vars(output)) if params is None else [each.name for each in fields(output)]
    for name in names:
        put(other, name, mapped(getattr(output, name), change))
    return other


def _said(error: BaseException) -> str:
    """The first line of the first error: it says what failed. The end of a failed recording is a further
    error, and torch adds a page of advice."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

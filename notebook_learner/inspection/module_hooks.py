"""Hooks on every module for one forward and backward pass: the order of calls, their inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from .batch import floating_in, shape_of
from .statistics import Measurements, Questions


@dataclass(eq=False)
class Call:
    """One call of one module."""

    name: str
    kind: str
    number: int
    """1 for the first call of this module in the pass."""
    parent: Call | None
    ended: bool = False
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()
    """The numbers of the questions about its floating tensors."""
    into: list[int] = field(default_factory=list)
    out_of: list[int] = field(default_factory=list)
    """Those of its tensors that get a gradient, as numbers of `Watch.gradients`."""

    @property
    def label(self) -> str:
        """The module's name and class."""
        again = f", call {self.number}" if self.number > 1 else ""
        return f"{self.name} ({self.kind}){again}" if self.name else f"{self.kind}{again}"


@dataclass(frozen=True, slots=True)
class Activation:
    """The first floating tensor of a module's output, and the measurement of it."""

    shape: tuple[int, ...] | None
    values: int | None


class ModuleWatch:
    """The record of one pass. `watching()` adds the hooks, and removes all of them at the end.

    Hooks read values and change nothing. They draw no random numbers and keep no tensor of the pass, except
    copies of small ones.
    """

    def __init__(self, model: nn.Module, questions: Questions, *, measuring: bool = False) -> None:
        self.model = plain_model(model)
        self.questions = questions
        self.measuring = measuring
        self.started: list[Call] = []
        """All calls, in the order in which they began."""
        self.ended: list[Call] = []
        """The calls that returned, in the order in which they did: a module after its parts."""
        self.gradients: dict[int, int] = {}
        """Gradients in the order of arrival: the tensor's number, and the question about it."""
        self.activations: dict[str, Activation] = {}
        """The activation of the last call, by module name."""
        self.calls: dict[str, int] = {}
        self.measured = Measurements()
        self._open: list[Call] = []
        self._nodes: dict[tuple[int, int], tuple[int, Any]] = {}
        self._handles = ExitStack()

    @property
    def where(self) -> Call | None:
        """The innermost module that has begun and not returned: the origin of an exception."""
        return self._open[-1] if self._open else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep hooks on every module during the block."""
        with uncompiled(), self._handles:
            self._handles.callback(self._nodes.clear)
            for name, module in self.model.named_modules():
                self._put_on(name, module)
            yield

    def _put_on(self, name: str, module: nn.Module) -> None:
        kind, leaf = type(module).__name__, is_row(module)

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._begin(name, kind, (args, kwargs))

        def after(_: nn.Module, __: Any, ___: Any, output: Any) -> None:
            self._end(name, output, measuring=self.measuring and leaf)

        with suppress(RuntimeError):  # modules from torch.jit take no hooks
            before_handle = module.register_forward_pre_hook(before, with_kwargs=True)
            self._handles.callback(before_handle.remove)
            self._handles.callback(module.register_forward_hook(after, with_kwargs=True).remove)

    def _begin(self, name: str, kind: str, given: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        call = Call(name, kind, self.calls[name], self._open[-1] if self._open else None)
        tensors = _readable(given)
        call.inputs = self.questions.ask(tensors)
        call.into = self._listen(tensors)
        self.started.append(call)
        self._open.append(call)

    def _end(self, name: str, output: Any, *, measuring: bool) -> None:
        # If the model caught an exception of a call, that call is still open: it closes with its parent.
        at = next(at for at in reversed(range(len(self._open))) if self._open[at].name == name)
        call = self._open[at]
        del self._open[at:]
        tensors = _readable(output)
        call.outputs = self.questions.ask(tensors)
        call.out_of = self._listen(tensors)
        call.ended = True
        self.ended.append(call)
        if measuring:
            self.activations[name] = self._activation(tensors)

    def _activation(self, tensors: list[Tensor]) -> Activation:
        if not tensors:
            return Activation(None, None)
        (number,) = self.measured.ask([tensors[:1]])
        return Activation(shape_of(tensors[0]), number)

    def _listen(self, tensors: list[Tensor]) -> list[int]:
        return [self._number(tensor) for tensor in tensors if tensor.requires_grad]

    def _number(self, tensor: Tensor) -> int:
        """The tensor's number. It is the same as output of one module and as input of the next.

        The nodes are kept during the pass, so that no new node gets the `id` of a freed one.
        """
        node = tensor if tensor.grad_fn is None else tensor.grad_fn
        place = (id(node), tensor.output_nr)
        if place not in self._nodes:
            number = len(self._nodes)
            self._nodes[place] = (number, node)
            handle = tensor.register_hook(self._listener(number))  # type: ignore[no-untyped-call]
            self._handles.callback(handle.remove)
        return self._nodes[place][0]

    def _listener(self, number: int) -> Callable[[Tensor], None]:
        def heard(gradient: Tensor) -> None:
            if number not in self.gradients:
                (self.gradients[number],) = self.questions.ask([gradient])

        return heard


def _readable(value: Any) -> list[Tensor]:
    """The floating tensors of a value, except those in a `torch.func.vmap`, whose values are unreadable."""
    return [tensor for tensor in floating_in(value) if not is_functorch_wrapped_tensor(tensor)]


def is_row(module: nn.Module) -> bool:
    """Whether a module counts as a layer: it has no parts, or it has its own parameters."""
    # torch's own methods build a set of names first, which takes 0.1 s for thousands of layers.
    return not any(part is not None for part in module._modules.values()) or bool(own_parameters(module))


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """A module's own parameters, without those of its parts; one with two names counts once."""
    own = {id(parameter): parameter for parameter in module._parameters.values() if parameter is not None}
    return [*own.values()]


def plain_model(model: nn.Module) -> nn.Module:
    """Return the model inside the wrapper of `torch.compile`.

    >>> plain_model(nn.Linear(1, 1))
    Linear(in_features=1, out_features=1, bias=True)
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled models without the compiler, because a compiled model calls no hooks.

    Also, a model compiled while there are hooks would contain them forever. If the compiler is not loaded,
    nothing is compiled; loading it to find out would take a second.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance

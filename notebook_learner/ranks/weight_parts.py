"""A rank's part of a model, of its gradients and of its optimizer's state: `strategy("fsdp")`.

While the ranks train, each holds some rows of every weight, and torch's `fully_shard` gathers a whole layer
for as long as the layer computes. The optimizer moves plain parameters that share their memory with these
rows, one for each weight. So code that works weight by weight and number by number does not have to know
about parts. While the learner stands still, rank 0 has everything whole, in the parameters that the user
knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any, Protocol

import torch
from torch import Size, Tensor, nn

from ..breakpoint import Breakpoint
from ..errors import NotebookLearnerError, StateError, StepError
from ..event import Notice
from ..run.replica import Replica
from ..state.state import ModelPart
from .reduction import Reducer, dist
from .sharding import Wrapped
from .shipping import on_host
from .state_transfer import fingerprint

DIVIDED = ("model", "optimizer", "window")
"""The parts of a state of which each rank has its own rows."""


def piece_of(tensor: Tensor, rank: int, world: int) -> Tensor:
    """A rank's rows, distributed as by torch's `fully_shard`: the last ranks may have fewer rows, or no row.

    >>> [piece_of(torch.arange(5), rank, 4).tolist() for rank in range(4)]
    [[0, 1], [2, 3], [4], []]
    """
    size = -(-len(tensor) // world)
    first = min(rank * size, len(tensor))
    return tensor[first : min(first + size, len(tensor))].detach().clone()


class Deal:
    """Distributes a captured state's tensors to the ranks, by the names and the positions of the weights."""

    def __init__(self, names: Mapping[str, int], places: Sequence[int]) -> None:
        self.names = names
        """The number of a weight, by its name; a tied weight has several names."""
        self.places = places
        """The numbers of the weights in the optimizer's order."""

    def cut(self, parts: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
        """A rank's part of a whole state. Rank 0 counts the samples of an open window."""
        known: dict[int, Tensor] = {}

        def piece(tensor: Tensor) -> Tensor:
            if id(tensor) not in known:
                known[id(tensor)] = piece_of(tensor, rank, world)
            return known[id(tensor)]

        told = self._changed(parts, lambda tensors: piece(tensors[0]), [parts])
        if rank and told["window"]["count"]:
            told["window"]["total"] = told["window"]["total"] * 0
        return {**parts, **told}

    def join(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The whole state, joined from the part that each rank has captured."""
        known: dict[int, Tensor] = {}

        def whole(tensors: Sequence[Tensor]) -> Tensor:
            if id(tensors[0]) not in known:
                known[id(tensors[0])] = torch.cat([tensor.cpu() for tensor in tensors])
            return known[id(tensors[0])]

        joined = self._changed(each[0], whole, each)
        if joined["window"]["count"]:
            for other in each[1:]:
                joined["window"]["total"] = joined["window"]["total"] + other["window"]["total"]
        return joined

    def _changed(
        self,
        parts: Mapping[str, Any],
        change: Callable[[Sequence[Tensor]], Tensor],
        each: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """The divided parts, with each distributed tensor replaced by `change` of the ranks' pieces."""
        models = [one["model"] for one in each]
        tensors = {
            name: change([one["tensors"][name] for one in models]) if name in self.names else tensor
            for name, tensor in parts["model"]["tensors"].items()
        }
        optimizers = [one["optimizer"]["state"] for one in each]
        weights = [each[0]["model"]["tensors"][self._name(place)].shape for place in self.places]
        state = [
            None
            if held is None
            else self._moments(held, [one[at] for one in optimizers], weights[at], change)
            for at, held in enumerate(parts["optimizer"]["state"])
        ]
        window = dict(parts["window"])
        if window["count"]:
            grads = [one["window"]["grads"] for one in each]
            window["grads"] = [
                None if grad is None else change([one[at] for one in grads])
                for at, grad in enumerate(window["grads"])
            ]
        return {
            "model": {**parts["model"], "tensors": tensors},
            "optimizer": {**parts["optimizer"], "state": state},
            "window": window,
        }

    def _name(self, place: int) -> str:
        return next(name for name, number in self.names.items() if number == place)

    @staticmethod
    def _moments(
        held: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]],
        shape: Size,
        change: Callable[[Sequence[Tensor]], Tensor],
    ) -> dict[str, Any]:
        """Change the optimizer's tensors that are as large as their weight: they are distributed like it. All
        ranks have the other values, like a count of steps."""
        values = {
            key: change([one["values"][key] for one in each])
            if isinstance(value, Tensor) and value.ndim and value.shape == shape
            else value
            for key, value in held["values"].items()
        }
        return {**held, "values": values}


_BY_HAND = (
    "the weights are in parts on several devices while the learner trains, and a forward pass outside of a "
    "step would wait for the others for ever; call the model once the learner stands still (after "
    "learner.pause(), or inside `with learner.paused()`), when this process has them whole"
)
_APART = (
    'the ranks ran different layers, or only some of them made a gradient; with strategy("fsdp") each '
    'has to run the same layers in the same order, for any samples; strategy("ddp") does not need that'
)
_ADOPTED = (
    'train_step made its own gradients (TrainOutput), which strategy("fsdp") would sum without the samples '
    'behind them; return the item with its `.loss` instead, or use strategy("ddp")'
)
_OVER = -1
"""The code on which ranks agree after the last layer of a step: no rank waits for another layer."""
_OTHERS = (
    "the model has other parameters than when it was built, so they cannot be dealt out to the devices; "
    "build a learner for the changed model"
)


class InParts(Reducer):
    """Sums for ranks that each hold a part of the model: torch's collectives, and the weight of a window."""

    def __init__(self, group: Any, reference: float) -> None:
        super().__init__(group, reference)
        self.driven = None
        self.parts: Parts | None = None
        self._stepping = False
        """Whether all ranks are in a step: only a step may use a weight."""
        self.begun = self.ended = 0
        """Counts of the weights' updates. If two ranks differ in them, their parts do not fit together."""
        self._path = 0

    def coming(self, parameters: list[nn.Parameter], total: Tensor | float) -> None:
        """Do nothing: torch sends the gradients."""

    def made(self) -> None:
        """After a backward pass, give the optimizer's parameters this rank's part of the gradients."""
        if self.parts is not None and self.parts.divided:
            self._agree(_OVER, 0)
            self.parts.collect()

    def adopt(self) -> None:
        """Refuse gradients that a step made itself: torch has already summed them without their weights.

        Raises:
            StepError: always.
        """
        raise StepError(_ADOPTED)

    def moved(self) -> None:
        """Note that the optimizer has moved this rank's part."""
        self.ended += 1

    def add_up(self, parameters: list[nn.Parameter], total: Tensor | float, mean: bool) -> Tensor:
        """Divide the gradients, which are already summed; return the sum of all ranks' weights."""
        like = parameters[0]
        tail = torch.zeros(2, dtype=torch.float64, device=like.device)
        tail[0], tail[1] = total, float(self._path)
        self._sum(tail)
        world = self.group.size()
        agreed, self._path = tail[1] == float(self._path * world), 0
        self.begun += 1
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        weight = torch.where(agreed, tail[0], nan).to(kind)  # does not wait to read it from a device
        grads = [p.grad for p in parameters if p.grad is not None]
        if mean and grads:
            torch._foreach_div_(grads, weight + (weight == 0))
        return weight

    def norm(self, norm: Tensor) -> Tensor:
        """The norm of all gradients, from the norm of this rank's part."""
        squared = norm.detach().to(torch.float64).square().reshape(1)
        self._sum(squared)
        return squared[0].sqrt().to(norm.dtype)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context in which all ranks take a step."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def rest(self) -> None:
        """Free gathered weights, after a forward pass without a backward pass."""
        assert self.parts is not None
        self._agree(_OVER, 0)
        self.parts.rest()

    # What torch asks for -----------------------------------------------------------------------------

    def gather(self, whole: Tensor, part: Tensor, unit: int) -> None:
        """Gather a unit's weights from all ranks."""
        if not self._stepping:
            raise StateError(_BY_HAND)
        self._agree(2 * unit, part.numel())
        self._do(lambda: self.group._allgather_base(whole, part), part)

    def scatter(self, part: Tensor, whole: Tensor, unit: int) -> None:
        """Sum a unit's gradients over all ranks."""
        if not self._stepping:
            raise StateError(_BY_HAND)
        self._agree(2 * unit + 1, part.numel())
        options = dist.ReduceScatterOptions()
        self._do(lambda: self.group._reduce_scatter_base(part, whole, options), part)

    def _agree(self, what: int, size: int) -> None:
        """Check that all ranks do the same operation. On the host the check comes before it: otherwise wrong
        weights, or a missing answer, would not be noticed. On CUDA the check comes after the step, because it
        would have to wait."""
        code = (what * 1_000_003 + size) % (1 << 31)
        self._path = (self._path * 31 + code) % (1 << 31)
        if not self._on_host:
            return
        mine, all_of_them = torch.tensor([code]), torch.zeros(self.group.size(), dtype=torch.int64)
        self._do(lambda: self.group._allgather_base(all_of_them, mine), mine)
        if any(each != code for each in all_of_them.tolist()):
            raise StepError(_APART)

    @property
    def _on_host(self) -> bool:
        return self.parts is None or self.parts.device.type == "cpu"


class Parts:
    """One rank's parts of the weights, and the change between parts and whole weights."""

    def __init__(self, replica: Replica, rank: int, world: int) -> None:
        self.replica, self.rank, self.world = replica, rank, world
        self._update = replica.loop.update
        self._whole = list(self._update.parameters)
        model = self._update.model
        numbers = {id(parameter): number for number, parameter in enumerate(self._whole)}
        named = model.named_parameters(remove_duplicate=False)
        self._names = {name: numbers[id(parameter)] for name, parameter in named if id(parameter) in numbers}
        self._numbers = numbers
        self._own: list[nn.Parameter] = []
        """The parameters that the optimizer moves while the weights are divided, always the same objects."""
        self._wrapped: Wrapped | None = None

    @property
    def divided(self) -> bool:
        """Whether this rank has only its part of the weights now."""
        return self._wrapped is not None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._whole[0].device

    @property
    def deal(self) -> Deal:
        """Cuts and joins captured states."""
        groups = self._update.optimizer.param_groups
        known = {**self._numbers, **{id(own): number for number, own in enumerate(self._own)}}
        return Deal(self._names, [known[id(p)] for group in groups for p in group["params"]])

    # To and fro --------------------------------------------------------------------------------------

    def divide(self, reducer: InParts) -> None:
        """Keep this rank's rows, and free the rest of the memory."""
        update, model = self._update, self._update.model
        if [id(p) for p in model.parameters()] != [id(p) for p in self._whole] or update._folded:
            raise StateError(_OTHERS)
        update._unhide()
        reducer.parts = self
        self._wrapped = wrapped = Wrapped(model, reducer, self.device, self.rank, self.world)
        if not self._own:
            self._own = [nn.Parameter(part, requires_grad=False) for part in wrapped.parts]
        for whole, own, part in zip(self._whole, self._own, wrapped.parts, strict=True):
            grad, whole.grad = whole.grad, None
            own.grad, own.data = None, part
            own.requires_grad_(whole.requires_grad)
            if grad is not None and update.count:
                own.grad = piece_of(grad, self.rank, self.world)
            # A user's code that kept this parameter and computes with it in a step gets NaN.
            whole.data = torch.full((), nan, dtype=whole.dtype, device=whole.device).expand(whole.shape)
        self._exchange(self._whole, self._own, wrapped.shapes)
        self._model_part.stand_ins = {name: self._own[number] for name, number in self._names.items()}

    def make_whole(self) -> None:
        """Restore the whole parameters with memory of full size; the caller then puts values there."""
        if self._wrapped is None:
            return
        shapes = self._wrapped.shapes
        self._wrapped.take_off()
        self._wrapped = None
        self._model_part.stand_ins = {}
        for whole, shape in zip(self._whole, shapes, strict=True):
            whole.data = torch.full(shape, nan, dtype=whole.dtype, device=whole.device)
            whole.grad = None
        for own in self._own:
            own.data, own.grad = own.data.new_empty(0), None
        self._exchange(self._own, self._whole, None)

    def _exchange(
        self,
        old: Sequence[nn.Parameter],
        new: Sequence[nn.Parameter],
        shapes: Sequence[torch.Size] | None,
    ) -> None:
        """Replace the parameters of the optimizer, and of objects that follow it. With `shapes` the
        optimizer's state is cut like the weights; without, it is dropped."""
        update, optimizer = self._update, self._update.optimizer
        to = {id(before): number for number, before in enumerate(old)}
        for group in optimizer.param_groups:
            group["params"] = [new[to[id(parameter)]] for parameter in group["params"]]
        held = dict(optimizer.state)
        optimizer.state.clear()
        for key, values in held.items():
            if not isinstance(key, Tensor):
                optimizer.state[key] = values
            elif shapes is not None:
                number = to[id(key)]
                optimizer.state[new[number]] = {
                    name: piece_of(value, self.rank, self.world)
                    if isinstance(value, Tensor) and value.ndim and value.shape == shapes[number]
                    else value
                    for name, value in values.items()
                }
        update.work_on(list(new))

    @property
    def _model_part(self) -> ModelPart:
        part = self.replica.parts["model"]
        assert isinstance(part, ModelPart)
        return part

    # In a run ----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take the gradients that a backward pass has left in torch's parameters."""
        assert self._wrapped is not None
        for own, divided in zip(self._own, self._wrapped.divided, strict=True):
            if divided.grad is not None:
                grad, divided.grad = divided.grad._local_tensor, None
                own.grad = grad if own.grad is None else own.grad + grad

    def rest(self) -> None:
        """Free gathered weights, after a forward pass without a backward pass."""
        assert self._wrapped is not None
        self._wrapped.rest()

    def captured(self) -> dict[str, Any]:
        """This rank's part of the state, on the host."""
        return {name: on_host(self.replica.parts[name].capture()) for name in DIVIDED}

    def put(self, parts: dict[str, Any]) -> None:
        """Make the weights whole, with the values of a joined state."""
        self.make_whole()
        for name in DIVIDED:
            self.replica.parts[name].restore({**parts[name], "extra": {}} if name == "model" else parts[name])

    def cut(self, tensor: Tensor, number: int, rank: int) -> Tensor:
        """Another rank's part of a weight, or of the optimizer's state for it."""
        same = tensor.ndim and tensor.shape == self._whole[number].shape
        return piece_of(tensor, rank, self.world) if same else tensor


class WeightHolders(Protocol):
    """The ranks that hold the other parts."""

    replica: Replica
    world: int
    dead: Any
    _reducer: Reducer

    def _ask(self, verb: str, *arguments: Any) -> list[Any]:
        """The answer of each other rank."""


class Whole:
    """Joins all weights from rank 0's part and the parts of the other ranks."""

    def __init__(self, others: WeightHolders) -> None:
        self._others = others
        self.parts = Parts(others.replica, 0, others.world)
        self.lost = ""
        """Why the weights are lost; empty if they are not."""

    def require(self, breakpoints: Iterable[Breakpoint]) -> None:
        """Raise if a run cannot begin.

        Raises:
            StateError: the weights are lost, or a breakpoint needs whole weights.
        """
        if self.lost:
            raise StateError(self.lost)
        wrong = [each.name for each in breakpoints if each.on and each.condition.needs_whole]
        if wrong:
            raise StateError(
                f"{', '.join(wrong)} would see only rank 0's part of gradients and weights, which "
                'strategy("fsdp") leaves in parts; switch it off, or use strategy("ddp")'
            )

    def bring(self) -> None:
        """Bring all parts to rank 0.

        Raises:
            StateError: the parts do not fit together.
        """
        if self.parts.divided:
            self.parts.put(self._joined("hand over", self.parts.captured()))

    def complete(self, captured: dict[str, Any]) -> None:
        """Make a captured state whole, which has only this rank's part."""
        if self.lost:
            raise StateError(self.lost)
        if self.parts.divided:
            captured |= self._joined("pieces", {name: on_host(captured[name]) for name in DIVIDED})

    def _joined(self, verb: str, mine: Mapping[str, Any]) -> dict[str, Any]:
        reducer = self._others._reducer
        assert isinstance(reducer, InParts)
        if self._others.dead is not None:
            raise StateError("a rank died with its part")
        told: Sequence[Any] = self._others._ask(verb)
        if any(each[:2] != (reducer.ended, reducer.ended) for each in told) or reducer.begun != reducer.ended:
            raise StateError("some ranks have moved their weights, and others not yet")
        return self.parts.deal.join([mine, *(pieces for _, _, pieces in told)])

    def lose(self) -> None:
        """Go back to the last whole state, because some parts are lost."""
        self.parts.make_whole()
        replica = self._others.replica
        try:
            last = replica.state_before(replica.loop.position)
        except NotebookLearnerError:
            self._has_none()
            return
        replica._fall_back(last)
        where = replica.loop.position
        replica.emit(Notice(f"not all parts of the weights are left; standing at {where}", "warning"))

    def _has_none(self) -> None:
        kept = [info.label for info in self._others.replica.saving.kept() if not info.damage]
        instead = f"restore({kept[-1]!r})" if kept else "restore() a state that was captured or saved before"
        self.lost = (
            "the weights were in parts on several devices, not all parts are left, and no keyframe held "
            f"them: this learner has no weights any more; {instead} puts weights back, and then restart() "
            "starts the other ranks"
        )

    # For the others ----------------------------------------------------------------------------------

    def cut(self, told: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """Cut another rank's part from this rank's state."""
        return self.parts.deal.cut(told, rank, self._others.world)

    def print(self, rank: int) -> int:
        """The fingerprint that another rank should have, with its part of this rank's state."""
        return fingerprint(self._others.replica, lambda tensor, number: self.parts.cut(tensor, number, rank))

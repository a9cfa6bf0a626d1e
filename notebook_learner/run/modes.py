"""Sets train and eval mode module by module: `model.train()` alone would unfreeze what the user froze. An
optimizer that has both modes (schedule-free) is switched, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..event import Split


@contextmanager
def ambient_kept_on_error(device: str) -> Iterator[None]:
    """Restore gradient recording and autocast if an exception leaves the block. Costs 3 us.

    Args:
        device: the kind of device that steps run on, as "cuda"; each kind has its own autocast.
    """
    gradients = torch.is_grad_enabled()
    caches = torch.is_autocast_cache_enabled()
    nesting = _autocast_nesting()
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", device)]
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(gradients)
        for kind, (enabled, dtype) in zip(("cpu", device), autocast, strict=True):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        raise


def _autocast_nesting() -> int:
    """How many `with torch.autocast` this thread is in. Only calls that change the number return it."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


class Modes:
    """Switches models between splits, and remembers which of their modules train.

    A model in eval mode at the start of training is set to train as a whole. After that, modules whose
    mode the user changed (a frozen BatchNorm) keep it through validation and back.
    """

    def __init__(self, model: nn.Module, validated: nn.Module) -> None:
        self.model = model
        self.validated = validated
        """The model that validation runs: the same one, or its moving average."""
        self.optimizers: Callable[[], Iterable[Any]] = tuple
        """The optimizers of now."""
        self.settle: Callable[[], None] = _nothing
        """Waits for copies of the weights that are under way: an optimizer's switch writes to them."""
        self._training: dict[nn.Module, bool] | None = None

    def enter(self, split: Split) -> None:
        """Put the model into the mode of this split."""
        if split == "train":
            self._enter_training()
        else:
            self.remember()
            switch(self.validated, training=False)
        self._switch_optimizers(training=split == "train")

    def _switch_optimizers(self, *, training: bool) -> None:
        for optimizer in self._with_modes():
            self.settle()
            optimizer.train() if training else optimizer.eval()

    def _with_modes(self) -> list[Any]:
        both = ("train", "eval")
        return [
            each for each in self.optimizers() if all(callable(getattr(each, name, None)) for name in both)
        ]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore every module's mode at the end of the block, after any calls of `enter` inside; and, to the
        bit, the weights that an optimizer's switch has written to."""
        remembered = self._training
        switched = [_Switched(each) for each in self._with_modes()]
        modes = {
            module: module.training for root in (self.model, self.validated) for module in root.modules()
        }
        try:
            yield
        finally:
            self._training = remembered
            for module, training in modes.items():
                module.training = training
            for each in switched:
                each.put_back()

    def remember(self) -> None:
        """Note which modules train, while the model is in training mode."""
        if self.model.training:
            self._training = {module: module.training for module in self.model.modules()}

    def capture(self) -> list[int] | None:
        """The modules that do not train in training, by their numbers; None before the first mode was set."""
        if self.model.training:
            return [number for number, each in enumerate(self.model.modules()) if not each.training]
        if self._training is None:
            return None
        trains = self._training
        return [number for number, each in enumerate(self.model.modules()) if not trains.get(each, True)]

    def restore(self, frozen: Sequence[int] | None) -> None:
        """Have exactly these modules not train. In validation they are noted for the training behind it."""
        if frozen is None:
            self._training = None
            switch(self.model, training=False)
            return
        still = frozenset(frozen)
        self._training = {each: number not in still for number, each in enumerate(self.model.modules())}
        if self.model.training:
            self._set(self._training)

    def _set(self, modes: Mapping[nn.Module, bool]) -> None:
        for module, training in modes.items():
            if module.training is not training:
                module.training = training

    def _enter_training(self) -> None:
        if self.model.training:
            return
        if self._training is None:
            switch(self.model, training=True)
            return
        for module in self.model.modules():
            module.training = self._training.get(module, True)


def _has_both_modes(optimizer: Any) -> bool:
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


class _Switched:
    """The weights of an optimizer that has two modes, and its mode."""

    def __init__(self, optimizer: Any) -> None:
        self._groups = [
            (group, {name: value for name, value in group.items() if isinstance(value, bool)})
            for group in optimizer.param_groups
        ]
        self._weights = [(p, p.detach().clone()) for group, _ in self._groups for p in group["params"]]

    def put_back(self) -> None:
        with torch.no_grad():
            for parameter, value in self._weights:
                parameter.copy_(value)
        for group, modes in self._groups:
            group.update(modes)


def _nothing() -> None:
    pass


def switch(model: nn.Module, *, training: bool) -> None:
    """Call `model.train()` or `model.eval()`, but only if the method means the mode. A method of the user
    that trains the model (`train(data)`, `train(epochs=10)`) is not called. A `train(mode=True)` like
    torch's is called, so a model can change its modes there.

    >>> class Own(nn.Module):
    ...     def train(self, data):
    ...         raise RuntimeError("not asked for")
    >>> model = Own()
    >>> switch(model, training=False)
    >>> model.training
    False
    """
    if all(map(_means_modes, model.modules())):
        model.train() if training else model.eval()
        return
    model.training = training
    for child in model.children():
        switch(child, training=training)


def _means_modes(module: nn.Module) -> bool:
    own = "train" in module.__dict__ or "eval" in module.__dict__
    kind = type(module)
    if not own and kind.train is nn.Module.train and kind.eval is nn.Module.eval:
        return True
    return _takes_a_mode(module.train) and not _required(module.eval)


def _takes_a_mode(train: object) -> bool:
    parameters = _parameters(train)
    first = parameters[0] if parameters else None
    if first is None or _required(train):
        return False
    return first.kind is first.VAR_POSITIONAL or isinstance(first.default, bool)


def _required(method: object) -> bool:
    """Whether it cannot be called without arguments."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(each.default is each.empty and each.kind not in optional for each in _parameters(method))


def _parameters(method: object) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(method).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a function in C has no signature
        return []

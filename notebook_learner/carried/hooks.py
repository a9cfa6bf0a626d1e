"""Hooks on a model's modules and parameters and on its optimizers: a step may register or remove them."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.hooks import RemovableHandle

from .kinds import ConstantKind, DictKind, Kind, Pairs, all_alike

OF_MODULES = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"),
)
_OF_FLAGS = ("_with_kwargs", "_always_called")
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_LIBRARIES = ("notebook_learner", "torch")
_FOR_USERS = "torch.nn.utils"
"""Here are the hooks of torch that a user asks for, such as those of pruning."""


class HooksKind(DictKind):
    """One dict of hooks, by the numbers that their handles know.

    Hooks of ours, and those by which torch runs a lazy module or a model in parts, come and go by themselves:
    they are left where they are.
    """

    name = "hooks"

    def take(self, live: Any) -> Pairs:
        found = {number: hook for number, hook in live.items() if not is_of_library(hook)}
        return tuple(found), tuple(found.values())

    def same(self, live: Any, taken: Pairs) -> bool:
        if not live and not taken[0]:
            return True
        numbers, hooks = self.take(live)
        return numbers == taken[0] and all_alike(hooks, taken[1])

    def put(self, live: Any, taken: Pairs) -> None:
        wanted = list(zip(*taken, strict=True))
        for number, hook in live.items():
            if is_of_library(hook):  # before those that were registered after it
                place = next((at for at, (other, _) in enumerate(wanted) if other > number), len(wanted))
                wanted.insert(place, (number, hook))
        live.clear()
        live.update(wanted)

    def parts(self, live: Any, taken: Pairs) -> Iterable[tuple[str, Any]]:
        of_libraries = [hook for number, hook in live.items() if number not in taken[0]]
        return ((f"[{place}]", hook) for place, hook in enumerate((*taken[1], *of_libraries)))


class FlagsKind(DictKind):
    """Which hooks of a dict want keywords, or are called after an error, too. A flag without its hook does
    nothing, so flags are put back, and none is taken away: it may be that of a library's hook."""

    name = "flags of hooks"

    def take(self, live: Any) -> Pairs:
        return tuple(live), tuple(live.values())

    def same(self, live: Any, taken: Pairs) -> bool:
        return all(number in live for number in taken[0])

    def put(self, live: Any, taken: Pairs) -> None:
        live.update(zip(*taken, strict=True))


_HOOKS, _FLAGS = HooksKind(), FlagsKind()


def kind_of_hooks(path: str) -> Kind:
    """How a dict is kept that has this path in a model or an optimizer."""
    return _FLAGS if path.endswith(_OF_FLAGS) else _HOOKS


class HandleKind(ConstantKind):
    """What removes a hook again. It knows the dict and a number, and both stay what they are."""

    name = "handle"

    def parts(self, live: Any, taken: Any) -> Iterable[tuple[str, Any]]:
        return ()


class MadeHandles:
    """Hooks of a file by the numbers that they have in this program, and handles that know these numbers.

    A hook is a function, which the program must bring. The handle of one that it does not bring removes
    nothing.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[RemovableHandle, Any, Any]] = []
        self._numbers: dict[int, list[int | None]] = {}
        """By the id of a dict: the number of each of its hooks; None for one that is not here."""

    def made(self, number: Any, place: Any) -> RemovableHandle:
        """A handle for the hook in this place of the dict that has this number in the file."""
        handle = RemovableHandle(OrderedDict())
        self._waiting.append((handle, number, place))
        return handle

    def numbered(self, live: Any, hooks: Sequence[Any]) -> Pairs:
        """The hooks that the program has brought, by their numbers in this dict."""
        known = {id(hook): number for number, hook in live.items()}
        for hook in filter(callable, hooks):
            if id(hook) not in known:
                known[id(hook)] = RemovableHandle(live).id
        numbers = self._numbers[id(live)] = [known[id(each)] if callable(each) else None for each in hooks]
        return tuple(each for each in numbers if each is not None), tuple(filter(callable, hooks))

    def settle(self, lives: Mapping[int, Any]) -> None:
        """Give the handles the numbers of their hooks, when the dicts are there."""
        for handle, number, place in self._waiting:
            numbers = self._numbers.get(id(lives.get(number)), [])
            found = numbers[place] if type(place) is int and 0 <= place < len(numbers) else None
            if found is not None:
                handle.hooks_dict_ref, handle.id = weakref.ref(lives[number]), found
        self._waiting.clear()


def is_of_library(hook: Any) -> bool:
    """Whether a hook is ours, or one by which torch runs a model."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = str(getattr(hook, "__module__", ""))
    return module.split(".")[0] in _LIBRARIES and not module.startswith(_FOR_USERS)

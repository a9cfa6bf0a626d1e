"""Find the learner that a magic means: the named one, or the only one in the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from IPython.core.error import UsageError

from ..errors import a_kind
from ..learner.learner import Learner
from ..trial.reload_code import redefined


def learners_in(names: Mapping[str, Any]) -> dict[str, Learner]:
    """The notebook's learners by name. One with two names counts once; names like `_` are IPython's
    history."""
    found: dict[int, tuple[str, Learner]] = {}
    for name, value in list(names.items()):
        if isinstance(value, Learner) and not name.startswith("_"):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def find_learner(names: Mapping[str, Any], name: str | None) -> Learner:
    """The learner of this name, or the only one.

    Raises:
        UsageError: no learner has that name, or there is no learner, or there are several and no name is
            given.
    """
    there = learners_in(names)
    if name is not None:
        value = names.get(name)
        if isinstance(value, Learner):
            return value
        wrong = f"`{name}` is {a_kind(value)}, no learner" if name in names else f"there is no `{name}`"
        raise UsageError(f"{wrong}; {_which(there)}")
    if len(there) != 1:
        raise UsageError(
            _which(there) if not there else f"{_which(there)}; say which one: %%train {next(iter(there))}"
        )
    return next(iter(there.values()))


def _which(there: Mapping[str, Learner]) -> str:
    if not there:
        return "the notebook has no learner yet; build one: learner = LearnerBuilder('runs/one').build(...)"
    listed = " and ".join(there) if len(there) == 2 else ", ".join(there)
    return f"the notebook's learner{' is' if len(there) == 1 else 's are'} {listed}"


class Offer:
    """Looks at the notebook's learners after each cell. Each new class is offered once."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._told: WeakSet[type] = WeakSet()

    def after_cell(self, *result: Any) -> None:
        """Called by the shell."""
        for name, learner in learners_in(self.shell.user_ns).items():
            new = [each for each in redefined(learner.model, self.shell.user_ns) if each not in self._told]
            if new:
                self._told.update(new)
                classes = " and ".join(sorted({each.__name__ for each in new}))
                print(
                    f"{classes} changed: {name}.tools.reload_code() gives the model in training the new "
                    "methods"
                )

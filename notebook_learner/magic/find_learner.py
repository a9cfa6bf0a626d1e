"""Which learner a magic means: the one that is named, or the only one of the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError

from ..errors import a_kind
from ..learner.learner import Learner


def learners_in(names: Mapping[str, Any]) -> dict[str, Learner]:
    """The notebook's learners by name. One with two names counts once; `_` and its like are the history."""
    found: dict[int, tuple[str, Learner]] = {}
    for name, value in list(names.items()):
        if isinstance(value, Learner) and not name.startswith("_"):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def find_learner(names: Mapping[str, Any], name: str | None) -> Learner:
    """The learner of this name, or the only one.

    Raises:
        UsageError: there is none of that name, none at all, or more than one to choose from.
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

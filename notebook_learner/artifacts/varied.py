"""In what several runs differ, from their recipes: a column for each value that varies, by its name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..store.durable import digest_of
from .recorded_recipe import RecordedRecipe

_LEFT_OUT = ("cells", "changes", "signed")
"""What differs from run to run without being a choice."""
_SHORT = ("config", "optimizer", "loss", "schedule", "model")
"""Groups whose members are known by their own names."""
BY_HAND = "changed by hand"
_TEXTS = ("source", "diff")

Columns = dict[str, list[Any]]


def varied(recipes: Sequence[RecordedRecipe]) -> Columns:
    """The values that are not the same in all runs, by name, with one value for each run.

    What only follows from another column is left out: the length of a loader if the batch size varies, the
    number of parameters if a value of yours varies with it.

    >>> runs = [{"config": {"lr": lr}, "optimizer": {"lr": lr, "momentum": 0}} for lr in (0.1, 0.2)]
    >>> varied([RecordedRecipe(each) for each in runs])
    {'lr': [0.1, 0.2]}
    """
    all_members = [_members(each) for each in recipes]
    names = dict.fromkeys(name for members in all_members for name in members)
    found = {name: [members.get(name) for members in all_members] for name in names}
    differing = {name: values for name, values in found.items() if _differ(name, values)}
    own = _not_told_twice(differing)
    kept = {name: values for name, values in own.items() if not _follows(name, differing, own)}
    short = _short_names(list(kept))
    return {short[name]: values for name, values in kept.items()}


def _members(recipe: RecordedRecipe) -> dict[str, Any]:
    members = {name: _briefly(name, value) for name, value in recipe.members.items() if name not in _LEFT_OUT}
    return {**members, BY_HAND: "; ".join(edits_of(recipe)) or None}


def edits_of(recipe: RecordedRecipe, since: int = 0) -> list[str]:
    """What was changed by hand on a run's own line, from a training step on.

    >>> done = [{"text": "lr = 0.1", "iteration": 3}, {"text": "lr = 9", "iteration": 5, "branch": "1"}]
    >>> edits_of(RecordedRecipe({"changes": done}))
    ['lr = 0.1 at step 3']
    """
    return [
        f"{each.get('text')} at step {each.get('iteration')}"
        for each in recipe.get("changes", ())
        if isinstance(each, Mapping)
        and not (each.get("resumed") or each.get("branch") or each.get("fork"))
        and int(each.get("iteration") or 0) >= since
    ]


def _briefly(name: str, value: Any) -> Any:
    is_text = isinstance(value, str) and name.partition(".")[0] in _TEXTS
    return digest_of(value.encode())[:8] if is_text else value


def _differ(name: str, values: list[Any]) -> bool:
    if name.startswith("versions."):  # a module that is imported later says nothing of this run
        values = [value for value in values if value is not None]
    return len({*map(_key, values)}) > 1


def _key(value: Any) -> Hashable:
    return repr(value)


def _not_told_twice(columns: Columns) -> Columns:
    """Without a column that has the values of an earlier one."""
    kept: Columns = {}
    for name, values in columns.items():
        if not any([*map(_key, values)] == [*map(_key, other)] for other in kept.values()):
            kept[name] = values
    return kept


def _follows(name: str, differing: Columns, own: Columns) -> bool:
    """Whether a column says nothing that another one does not say."""
    group, _, last = name.rpartition(".")
    if name == "model.parameters":
        others = {each: values for each, values in differing.items() if not each.startswith("config.")}
        causes = [
            values
            for each, values in own.items()
            if each.startswith(("config.", "model.")) and each != name and values not in others.values()
        ]
        return any(_parted(values) == _parted(differing[name]) for values in causes)
    if last == "length" and group.startswith("loaders."):
        return f"{group}.batch_size" in differing and f"{group}.samples" not in differing
    return False


def _parted(values: Sequence[Any]) -> list[int]:
    """For each run, the first one with the same value."""
    keys = [*map(_key, values)]
    return [keys.index(each) for each in keys]


def _short_names(names: Sequence[str]) -> dict[str, str]:
    def short(name: str) -> str:
        group, _, last = name.rpartition(".")
        if last in ("class", "name") and group:
            return group
        return last if group in _SHORT or group.endswith(".reads") or group.startswith("optimizer.") else name

    found = [*map(short, names)]
    return {name: name if found.count(each) > 1 else each for name, each in zip(names, found, strict=True)}

"""The changes in a recipe: what each is, where it was made, and to what they lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..artifacts.recorded_recipe import RecordedRecipe, flat
from ..event.position import Position
from .former_code import is_code

UNTOLD = ("cells", "changes", "hardware", "signed")
"""What may differ from one process to the next without being a change of the run."""

SPLIT = "split_batch"
"""The number of parts in which each batch is taken; left out if it is 1."""

Told = dict[str, Any]


def read(text: str) -> Told:
    """A recipe from its JSON; empty if it is none."""
    told = RecordedRecipe.parse(text)
    return told if _is_sound(told) else {}


def _is_sound(told: Told) -> bool:
    changes = told.get("changes", [])
    return (
        isinstance(told.get("cells", []), list)
        and isinstance(told.get("config", {}), dict)
        and isinstance(changes, list)
        and all(map(_is_a_change, changes))
    )


def _is_a_change(each: Any) -> bool:
    return (
        isinstance(each, dict)
        and _are_pairs(each.get("changed", {}))
        and all(type(each.get(name)) is int for name in ("iteration", "epoch", "step"))
        and each.get("split") in ("train", "valid")
        and isinstance(each.get("id"), str)
    )


def _are_pairs(changed: Any) -> bool:
    return isinstance(changed, dict) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in changed.values()
    )


def members_of(told: Told) -> Told:
    """What a recipe tells that does not differ from one process to the next, by dotted names."""
    found = flat({name: each for name, each in told.items() if name not in UNTOLD})
    return {SPLIT: 1} | found if told else found


def is_on(change: Told, branch: str) -> bool:
    """Whether a change is on a branch; without a name, on the line that the run is on."""
    return (change.get("branch") or "") == branch


def can_be_repeated(change: Told) -> bool:
    """Whether a change can be made again from what is recorded of it: it is of options alone, not of weights
    ("state")."""
    changed, rates = change.get("changed", {}), change.get("rates")
    own = all(map(is_option, changed))
    sound = isinstance(rates, list) and all(type(rate) in (int, float) for rate in rates)
    parts = changed.get(SPLIT, [1, 1])[1]
    own = own and type(parts) is int and parts > 0
    return own and sound and not change.get("resumed") and not change.get("state")


def is_option(name: str) -> bool:
    """Whether a member is an option of an optimizer, or the number of parts of a batch."""
    return name == SPLIT or (name.startswith(("optimizer.", "optimizers.")) and "class" not in name)


def in_force(changes: Sequence[Told], now: Told) -> Sequence[str]:
    """Of the changes at one place, the first ones that led to the present values; all of those if more than
    one number of them does."""
    for count in range(len(changes), 0, -1):
        done, undone = changes[:count], changes[count:]
        values = {name: pair[0] for each in reversed(undone) for name, pair in each["changed"].items()}
        values |= {name: pair[1] for each in done for name, pair in each["changed"].items()}
        if all(now[name] == value for name, value in values.items() if name in now):
            return [each["id"] for each in changes[:count]]
    return ()


def place_of(change: Told) -> Position:
    """Where a change was made."""
    return Position(change["epoch"], change["split"], change["step"], change["iteration"])


def code_in(told: Told) -> Told:
    """The members of a recipe that say by what code the run trains."""
    return {name: each for name, each in members_of(told).items() if is_code(name)}


def latest(told: Told) -> Told:
    """The members as the last change left them."""
    found = members_of(told)
    for change in told.get("changes", ()):
        if not is_on(change, ""):
            continue
        found |= {name: pair[1] for name, pair in change.get("changed", {}).items()}
    return found


def differences(before: Told, now: Told) -> Told:
    """The members that differ, each with its former and its present value."""
    return {
        name: [before.get(name), value]
        for name, value in now.items()
        if before.get(name) != value and not (name.startswith("versions.") and name not in before)
    }

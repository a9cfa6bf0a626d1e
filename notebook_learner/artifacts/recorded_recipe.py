"""What made a run, read back from its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..store.json_text import parse
from .tables import Table

_LONGEST = 80


class RecordedRecipe(dict[str, Any]):
    """A run's recipe: a dict of plain values, which prints as a table.

    >>> print(RecordedRecipe({"optimizer": {"class": "SGD", "lr": 0.1}, "seed": None}))
    what             value
    ---------------  -----
    optimizer.class  SGD
    optimizer.lr     0.1
    >>> RecordedRecipe({})
    nothing is recorded of what made this run: the version that wrote it kept no recipe
    """

    @staticmethod
    def parse(text: str) -> RecordedRecipe:
        """Read a recipe, which may be a stranger's; what is no recipe gives an empty one."""
        try:
            told = parse(bytearray(text, "utf-8", "replace"), len(text))
        except ValueError:
            told = None
        return RecordedRecipe(told if isinstance(told, dict) else {})

    @property
    def members(self) -> dict[str, Any]:
        """All values by their dotted names. A list is one value."""
        return flat(self)

    @property
    def table(self) -> Table:
        """The values on one line each; a source text as its first line."""
        told = {name: each for name, each in self.members.items() if each is not None and name != "signed"}
        rows = [(name, _said(value)) for name, value in told.items()]
        empty = "nothing is recorded of what made this run: the version that wrote it kept no recipe"
        return Table("", ("what", "value"), rows, (False, False), empty)

    def __repr__(self) -> str:
        return self.table.text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.table.html()


def flat(told: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The members of nested objects by their dotted names.

    >>> flat({"loss": {"name": "mse", "sizes": [2, 3]}, "seed": 3})
    {'loss.name': 'mse', 'loss.sizes': [2, 3], 'seed': 3}
    """
    found: dict[str, Any] = {}
    for name, value in told.items():
        here = f"{path}.{name}" if path else str(name)
        found |= flat(value, here) if isinstance(value, Mapping) else {here: value}
    return found


def _said(value: Any) -> str:
    if isinstance(value, str):
        first, *more = value.strip().split("\n") or [""]
        text = f"{first} (and {len(more)} more lines)" if more else first
    elif isinstance(value, list) and len(str(value)) > _LONGEST:
        text = f"{len(value)} of them"
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

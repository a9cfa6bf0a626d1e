"""The sheets of a run: pictures and texts of metrics, and chosen samples, by the position they are of."""

from __future__ import annotations

from collections import deque

from .values import Rewound, Sheet, Split

KEPT = 20
"""Sheets of one name that are kept, so that going back finds the one that was shown there."""


class KeptSheets:
    """Keeps the last sheets of each name and split.

    >>> kept = KeptSheets()
    >>> for epoch in (1, 2):
    ...     kept.add(Sheet("Said", "valid", epoch, "valid", 4, f"hello {epoch}"))
    >>> [sheet.content for sheet in kept.latest()]
    ['hello 2']
    >>> kept.go_back(Rewound(2, "train", 0, (), 0, 0))
    >>> [sheet.content for sheet in kept.latest()]
    ['hello 1']
    """

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, Split | None], deque[Sheet]] = {}

    def add(self, sheet: Sheet) -> None:
        """Take a sheet. It replaces the one of the same place."""
        sheets = self._by_name.setdefault((sheet.name, sheet.of), deque(maxlen=KEPT))
        while sheets and _place(sheets[-1]) >= _place(sheet):
            sheets.pop()
        sheets.append(sheet)

    def go_back(self, back: Rewound) -> None:
        """Forget the sheets behind the position that the run went back to."""
        end = (back.epoch, back.split == "valid", back.step)
        for sheets in self._by_name.values():
            while sheets and _place(sheets[-1]) > end:
                sheets.pop()

    def latest(self) -> tuple[Sheet, ...]:
        """The newest sheet of each name and split."""
        return tuple(sheets[-1] for sheets in self._by_name.values() if sheets)

    def all(self) -> tuple[Sheet, ...]:
        """All sheets, the older ones of a name first."""
        return tuple(sheet for sheets in self._by_name.values() for sheet in sheets)

    def before(self, sheet: Sheet) -> Sheet | None:
        """The one before the newest."""
        sheets = self._by_name[sheet.name, sheet.of]
        return sheets[-2] if len(sheets) > 1 else None

    def clear(self) -> None:
        """Another run begins."""
        self._by_name.clear()


def _place(sheet: Sheet) -> tuple[int, bool, int]:
    return sheet.epoch, sheet.split == "valid", sheet.step

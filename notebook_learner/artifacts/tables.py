"""Tables for people, as text and as HTML. Names and settings may be a stranger's, so all texts are escaped.

The HTML takes its colours from the page around it, light or dark, and loads nothing from any other address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_CELL = "padding: 0.1em 0.8em; text-align: {side}; border: none; background: none; color: inherit"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under headings.

    >>> print(Table("", ("run", "Loss"), [("a", "0.5")], (False, True)).text())
    run  Loss
    ---  ----
    a     0.5
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    """Which columns are aligned to the right."""
    empty: str = "nothing yet"

    def text(self) -> str:
        """The table as text for a terminal."""
        from ..renderer.summary import text_table

        rows = [[plain(cell) for cell in row] for row in self.rows]
        lines = text_table([plain(heading) for heading in self.headings], rows, self.right) or [self.empty]
        lines = [line.rstrip() for line in lines]
        return "\n".join([plain(self.title), "", *lines] if self.title else lines)

    def turned(self) -> Table:
        """The table with one line for each column, so that few rows with many columns fit into a window.

        >>> print(Table("", ("run", "Loss"), [("a", "0.5"), ("b", "0.25")], (False, True)).turned().text())
        run     a     b
        ----  ---  ----
        Loss  0.5  0.25
        """
        first, *others = zip(self.headings, *self.rows, strict=True)
        return Table(self.title, first, others, [False, *[True] * len(self.rows)], self.empty)

    def html(self) -> str:
        """The table as HTML for a notebook."""
        title = f"<p><strong>{escape(plain(self.title))}</strong></p>" if self.title else ""
        if not self.rows:
            return f"{title}<p>{escape(self.empty)}</p>"
        head = self._row("th", self.headings)
        body = "".join(self._row("td", row) for row in self.rows)
        return f'{title}<table style="color: inherit"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _row(self, tag: str, cells: Sequence[str]) -> str:
        shown = "".join(
            f'<{tag} style="{_CELL.format(side="right" if right else "left")}">{escape(plain(cell))}</{tag}>'
            for cell, right in zip(cells, self.right, strict=True)
        )
        return f"<tr>{shown}</tr>"


def plain(text: str) -> str:
    """A text on one line, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)

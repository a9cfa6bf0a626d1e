"""The tabs of a panel that show no curve: a matrix, a picture, a text, or samples with their predictions."""

from __future__ import annotations

import base64

import numpy as np

from ..event import Matrix, SampleRow, Sheet
from ..event.kept_sheets import KeptSheets
from ..event.values import Cell
from ..renderer.text import count, number, one_line
from .wire import Json

MOST_CLASSES = 40
"""The classes of a matrix that a page gets; a larger table would show nothing, and slow the page down."""
LONGEST_TEXT = 20_000


def sheets_told(kept: KeptSheets) -> list[Json]:
    """What a page shows, by tab: a tab has the sheets of one name, those of the validation first."""
    tabs: dict[str, list[Sheet]] = {}
    for sheet in sorted(kept.latest(), key=lambda sheet: sheet.of == "train"):
        tabs.setdefault(sheet.name, []).append(sheet)
    return [
        {"name": name, "parts": [_part(sheet, kept.before(sheet)) for sheet in sheets]}
        for name, sheets in tabs.items()
    ]


def _part(sheet: Sheet, before: Sheet | None) -> Json:
    content = sheet.content
    said = {"split": sheet.of or "", "where": _where(sheet)}
    if isinstance(content, Matrix):
        return {**said, "kind": "matrix", **matrix_told(content)}
    if isinstance(content, tuple):
        earlier = before.content if before is not None and isinstance(before.content, tuple) else ()
        rows = [_row(row, earlier[at] if at < len(earlier) else None) for at, row in enumerate(content)]
        return {**said, "kind": "samples", "rows": rows, "before": "" if before is None else _where(before)}
    if isinstance(content, bytes):
        return {**said, "kind": "picture", "cell": _cell(content)}
    return {**said, "kind": "text", "text": content[:LONGEST_TEXT]}


def _where(sheet: Sheet) -> str:
    """The place of a sheet, as people say it.

    >>> _where(Sheet("Samples", None, 3, "train", 0, "")), _where(Sheet("Samples", None, 3, "train", 7, ""))
    ('after epoch 2', 'epoch 3, train, step 7')
    """
    if sheet.of is not None:
        return f"epoch {sheet.epoch}"
    if sheet.split == "train" and sheet.step == 0:
        return "before the first step" if sheet.epoch == 1 else f"after epoch {sheet.epoch - 1}"
    return f"epoch {sheet.epoch}, {sheet.split}, step {count(sheet.step)}"


def matrix_told(matrix: Matrix) -> Json:
    """The counts of the classes, or of those that take part in most errors.

    >>> told = matrix_told(Matrix(("cat", "dog"), np.array([[3, 1], [0, 4]])))
    >>> told["counts"], told["right"], told["left_out"]
    ([[3, 1], [0, 4]], '87.50 % of 8', '')
    """
    counts, total = matrix.counts, int(matrix.counts.sum())
    right = f"{number(100 * float(np.trace(counts)) / total)} % of {count(total)}" if total else ""
    shown = np.arange(len(counts))
    if len(counts) > MOST_CLASSES:
        wrong = counts - np.diag(np.diag(counts))
        errors = wrong.sum(0) + wrong.sum(1)
        shown = np.sort(np.argsort(-errors, kind="stable")[:MOST_CLASSES])
    left_out = len(counts) - len(shown)
    return {
        "names": [one_line(matrix.names[at]) for at in shown],
        "counts": counts[np.ix_(shown, shown)].tolist(),
        "due": counts.sum(1)[shown].tolist(),
        "right": right,
        "left_out": f"the {len(shown)} of {count(len(counts))} classes with most errors" if left_out else "",
    }


def _row(row: SampleRow, before: SampleRow | None) -> Json:
    return {
        "given": _cell(row.given),
        "target": _cell(row.target),
        "prediction": _cell(row.prediction),
        "before": _cell("" if before is None else before.prediction),
        "loss": "" if row.loss is None else number(row.loss),
        "right": row.right,
    }


def _cell(cell: Cell) -> Json:
    if isinstance(cell, bytes):
        return {"picture": "data:image/png;base64," + base64.b64encode(cell).decode("ascii")}
    return {"text": cell}

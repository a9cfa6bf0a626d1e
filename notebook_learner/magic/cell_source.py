"""The place of a body in its cell, so that debuggers and tracebacks point at the cell's own lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError


@dataclass(frozen=True)
class CellSource:
    """A body as Python, with comments for the lines of the cell above it.

    `name` is the file name of the whole cell, which `breakpoint()`, `%debug` and the debugger of JupyterLab
    use. They take code with this name, and with the cell's line numbers, for the cell's code.
    """

    text: str
    name: str
    first: int
    """The line of the cell in which the body begins."""


def source_of(shell: Any, magic: str, line: str, cell: str) -> CellSource:
    """The body of the cell that runs now, which begins with `%%magic line`."""
    raw, above = _in_its_cell(shell, f"%%{magic} {line}", cell)
    lines = cell.split("\n")  # as Python does: not at a form feed
    blank = next((i for i, each in enumerate(lines) if each.strip()), len(lines))
    # IPython would drop the blank lines, and all lines would move up.
    body = "\n".join(lines[blank:]).rstrip()
    if not body:
        raise UsageError(f"the cell has nothing below its %%{magic}; write the step there")
    if body.startswith("%%"):
        raise UsageError(f"{body.split()[0]} inside of %%{magic} is no part of a step; put it on top")
    first = above + blank
    heading = [f"#{each}" for each in raw.split("\n")[:first]]
    text = "\n".join([*heading, shell.transform_cell(f"{body}\n")])
    # A terminal makes the name of the number; a kernel makes it of the raw cell's hash.
    name = shell.compile.cache(text, shell.execution_count, raw_code=raw)
    return CellSource(text, name, first + 1)


def _in_its_cell(shell: Any, heading: str, cell: str) -> tuple[str, int]:
    """The cell as it was typed, and the number of its lines before the body."""
    body = _stripped(cell)
    for raw in _typed(shell):
        whole = _stripped(raw)
        if body and whole[-len(body) :] == body:
            return raw, len(whole) - len(body)
    return f"{heading}\n{cell}", 1  # called by code, not typed


def _stripped(text: str) -> list[str]:
    """The text's lines without the space around them, which IPython changes, and without blank lines at the
    end."""
    return [line.strip() for line in text.rstrip().split("\n")]


def _typed(shell: Any) -> list[str]:
    """Candidates for the running cell: the kernel's request, or the last line of the history."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    code = parent.get("content", {}).get("code")
    history = shell.history_manager.input_hist_raw if shell.history_manager is not None else []
    return [*([code] if isinstance(code, str) else []), *history[-1:]]

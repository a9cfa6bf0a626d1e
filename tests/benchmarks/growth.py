"""How costs grow with the work: a table a curve, in CPU time of the whole process.

A curve is a function that trains ever more, and yields a row of figures at each size, the size first. To add
one, write it in a module `growth_*.py` that is named in `MODULES`:

    @curve("rewind", "steps behind", "ms CPU", "steps replayed")
    def rewind_again(quick):
        \"\"\"`rewind(1)` repeated after a long training.\"\"\"
        for size in (10, 20) if quick else (100, 1000, 10_000):
            yield size, 1.5, 3

It imports what it measures inside the function. Each curve has a process of its own. `--curves NAME ...`
takes only these, and `--quick` small sizes, to see that they run (a test does).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

MODULES = ("growth_checkpoints", "growth_watching", "growth_time", "growth_carried")
"""Where the curves are; each registers its own when it is imported."""

Row = tuple[object, ...]


@dataclass(frozen=True)
class Curve:
    """A table: what it shows, and what makes its rows."""

    heads: tuple[str, ...]
    rows: Callable[[bool], Iterable[Row]]


CURVES: dict[str, Curve] = {}


def curve(name: str, *heads: str) -> Callable[[Callable[[bool], Iterable[Row]]], None]:
    """Register a curve; its docstring says what it shows."""

    def register(rows: Callable[[bool], Iterable[Row]]) -> None:
        CURVES[name] = Curve(heads, rows)

    return register


class Took:
    """CPU time of a block."""

    seconds = 0.0

    @property
    def ms(self) -> float:
        return self.seconds * 1e3


@contextmanager
def cpu() -> Iterator[Took]:
    """`with cpu() as took: ...`, then `took.ms`: of all threads of this process, the waiting left out."""
    took = Took()
    began = time.process_time()
    try:
        yield took
    finally:
        took.seconds = time.process_time() - began


def main(names: list[str], *, quick: bool) -> None:
    """Print the tables of these curves, or of all."""
    for name in names or CURVES:
        subprocess.run([sys.executable, __file__, name, *(["--quick"] if quick else [])], check=True)


def show(name: str, *, quick: bool) -> None:
    """Print one table, its rows as they come."""
    shown = CURVES[name]
    widths = [max(len(head), 9) for head in shown.heads]
    print(f"\n{name}: {' '.join((shown.rows.__doc__ or '').split())}")
    print(_line(shown.heads, widths), _line(["-" * width for width in widths], widths), sep="\n", flush=True)
    for row in shown.rows(quick):
        print(_line([_said(cell) for cell in row], widths), flush=True)


def _line(cells: Iterable[str], widths: list[int]) -> str:
    return f"| {' | '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))} |"


def _said(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


for module in MODULES:
    import_module(module)

if __name__ == "__main__":
    import growth  # the module in which the curves are registered: this one has another name

    growth.show(sys.argv[1], quick="--quick" in sys.argv)

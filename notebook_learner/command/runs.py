"""The commands that look at runs on the disk."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from ..artifacts import Artifacts
from ..artifacts.run_status import runs_below, size_of
from ..artifacts.tables import Table, plain
from ..errors import NotebookLearnerError, StoreError
from ..renderer.text import number, size_text
from ..store.layout import SPLITS


def ls(given: argparse.Namespace) -> int:
    """List the runs below directories."""
    rows = []
    for root in given.directories:
        if not Path(root).is_dir():
            raise StoreError(f"there is no directory {root!r}")
        rows += [_row(path) for path in runs_below(Path(root))]
    headings = ("run", "status", "epochs", "best loss", "checkpoints", "size")
    _print(Table("", headings, rows, (False, False, True, True, True, True), "no runs"))
    return 0


def _row(path: Path) -> tuple[str, ...]:
    size = size_text(size_of(path))
    try:
        run = Artifacts(path)
        count = len(run.checkpoints)
        return str(path), run.status, str(run.epochs_done), _best_loss(run), str(count), size
    except (NotebookLearnerError, OSError):
        return str(path), "damaged", "-", "-", "-", size


def _best_loss(run: Artifacts) -> str:
    for split in reversed(SPLITS):
        if "Loss" in run.metrics(split):
            best = run.history.best("Loss", split, mode="min")
            if best is not None:
                return f"{number(best.value)} (epoch {best.epoch})"
    return "-"


def show(given: argparse.Namespace) -> int:
    """Show runs."""
    from rich.console import Console

    console = Console()
    for directory in given.directories:
        run = Artifacts(directory)
        for shown in (repr(run), None, run.summary(), None):
            console.print("" if shown is None else shown, markup=False, highlight=False)
        if run.evaluations:
            _print(run.evaluations._table())
            console.print("")
        _print(run.checkpoints._table())
    return 0


def verify(given: argparse.Namespace) -> int:
    """Read every byte of runs."""
    reports = [Artifacts(directory).verify() for directory in given.directories]
    for report in reports:
        print(report)
    return 0 if all(reports) else 1


def repair(given: argparse.Namespace) -> int:
    """Clean up the unfinished files of a killed process."""
    reports = [Artifacts(directory).repair() for directory in given.directories]
    for report in reports:
        print(report)
    return 0 if all(reports) else 1


def export(given: argparse.Namespace) -> int:
    """Write a run into one file."""
    path = Artifacts(given.directory).export(given.target, overwrite=given.overwrite)
    print(f"{path}: {size_text(path.stat().st_size)}")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Compare runs."""
    _print(Artifacts.compare(given.directories)._printed())
    return 0


def _print(table: Table) -> None:
    """Print with colours and lines on a terminal, and as aligned text into a pipe, never cut to a width."""
    if not sys.stdout.isatty():
        print(table.text())
        return
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading, right in zip(table.headings, table.right, strict=True):
        shown.add_column(plain(heading), justify="right" if right else "left")
    for row in table.rows:
        shown.add_row(*(Text(plain(cell)) for cell in row))
    with suppress(BrokenPipeError):
        Console().print(shown if table.rows else table.empty)

"""A terminal shows how far a set is gone through, and afterwards one line with what was found."""

from __future__ import annotations

import io

from rich.console import Console

from notebook_learner.event import Evaluated, SetProgress, SplitRecord
from notebook_learner.renderer.terminal import TerminalRenderer


def test_progress_stands_in_one_line_and_makes_room_for_the_values() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, height=20, _environ={"TERM": "xterm"})
    renderer = TerminalRenderer(console)
    renderer.handle(SetProgress("evaluate clean", 5, 20))
    assert "evaluate clean: batch 5 of 20 (25 %)" in screen.getvalue()
    renderer.handle(SetProgress("evaluate clean", 20, 20, over=True))
    drawn = len(screen.getvalue())
    renderer.handle(Evaluated("clean", 1, "train", 3, SplitRecord(1, "valid", (), {"Loss": 0.5})))
    assert "evaluated clean · Loss 0.5000 · 0 batches" in screen.getvalue()[drawn:]
    assert renderer._live is None

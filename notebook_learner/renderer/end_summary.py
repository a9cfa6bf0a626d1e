"""The texts that stay on the screen after a pause, an end or an evaluation: a line, and the summary."""

from __future__ import annotations

from ..event import Evaluated, SetProgress
from .numbers import count, duration, number, percent
from .summary import Summary, summary_rows
from .tally import Tally
from .text import one_line


def because(reason: str) -> str:
    """A reason as the end of a sentence, if one is known."""
    return f": {one_line(reason)}" if reason else ""


def whereabouts(tally: Tally) -> str:
    """The text after the status: how long the run took, or its position and the reason of the stop."""
    if tally.status != "finished":
        return f" at {tally.place()}{because(tally.reason)}"
    elapsed = tally.pace.elapsed
    return f" after {duration(elapsed)}" if elapsed else ""  # a finished run needs no reason


def news(tally: Tally) -> Summary | None:
    """The summary at the end, and at a pause if a pass ended since the last one (not at every step)."""
    run = tally.run
    rows = summary_rows(tally, list(tally.infos.values()))
    if run is None or not rows or not (tally.fresh or tally.status == "finished"):
        return None
    tally.fresh = False
    epochs = f"{tally.epochs_done} of {tally.num_epochs}"
    return Summary(run.model, run.parameters, {**run.settings, "epochs": epochs}, rows)


def evaluation(event: Evaluated) -> str:
    """An evaluated set in one line."""
    units = {info.name: one_line(info.unit) for info in event.metrics}
    finals = (event.record.finals or {}).items()
    values = [f"{one_line(name)} {number(value, units.get(name, ''))}" for name, value in finals]
    steps = event.record.steps
    batches = f"{count(steps)} batch{'' if steps == 1 else 'es'}"
    return " · ".join([f"evaluated {one_line(event.name)}", *values, batches])


def tour(event: SetProgress) -> str:
    """The progress of an evaluation on other data, or of a replay.

    >>> tour(SetProgress("evaluate clean", 5, 20))
    'evaluate clean: batch 5 of 20 (25 %)'
    >>> tour(SetProgress("on the way back to epoch 1, train, step 9", 0, 9, unit="step"))
    'on the way back to epoch 1, train, step 9: step 0 of 9 (0 %)'
    """
    of = f" of {count(event.total)} ({percent(event.step / event.total)})" if event.total else ""
    return f"{one_line(event.what)}: {event.unit} {count(event.step)}{of}"

"""The texts next to a panel's curves: the state of the run as plain JSON, with all numbers formatted."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, Protocol

from ..event import (
    CheckpointSaved,
    EpochEnded,
    Evaluated,
    Event,
    Marked,
    MetricBlock,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    Sheet,
    Split,
    SplitEnded,
    SplitStarted,
    Status,
    StatusChanged,
)
from ..event.kept_sheets import KeptSheets
from ..renderer.summary import evaluation, tour
from ..renderer.tally import Tally
from ..renderer.text import count, duration, number, one_line, place, rate, remaining, size_text
from .run_axes import RunAxes, as_lists, epoch_knots
from .sheets import sheets_told
from .wire import Json

BUTTONS = (
    *("run", "pause", "step", "step_epoch", "rewind", "rewind_to", "go_to", "stop"),
    *("inspect", "verify", "save", "restore", "epochs", "set"),
)
_STILL = "it is running; pause it first"
_NOT_MEANWHILE = (
    *("run", "step", "step_epoch", "rewind", "rewind_to", "go_to"),
    *("inspect", "verify", "restore"),
)
_MOVES = ("run", "step", "step_epoch")


def obstacles(
    status: Status, *, begun: bool, saved: bool, lacks: str = "", kept: bool = True, away: str = ""
) -> dict[str, str]:
    """For each button: "" if it can be used, else the reason why not.

    Args:
        status: the learner's status.
        begun: whether the learner has taken a step.
        saved: whether there is a checkpoint.
        lacks: what the learner needs before it can train.
        kept: whether the learner can go back to an earlier step.
        away: which other process or learner continues the run.

    >>> obstacles("running", begun=True, saved=False)["step"]
    'it is running; pause it first'
    """
    if away:
        return dict.fromkeys(BUTTONS, away)
    found = dict.fromkeys(BUTTONS, "")
    if status == "running":
        return {**found, **dict.fromkeys(_NOT_MEANWHILE, _STILL)}
    found["pause"] = "nothing is running"
    if status not in ("paused", "failed"):
        found["stop"] = "nothing is running" if status != "stopped" else "it is stopped"
    if status == "finished":
        over = "all epochs are over; set a higher number of epochs"
        found.update(dict.fromkeys((*_MOVES, "verify"), over))
    if not begun:
        found["rewind"] = found["rewind_to"] = "no step was taken yet"
    elif not kept:
        found["rewind_to"] = "no earlier step is kept"
    if not saved:
        found["restore"] = "there is no checkpoint"
    if lacks:
        found.update({name: found[name] or lacks for name in (*_MOVES, "go_to", "inspect", "verify")})
    return found


SPLITS: tuple[Split, ...] = ("train", "valid")
MOST_LINES = 100
"""Lines of the log that a panel shows."""
MOST_MARKS = 500
"""The most marks on the axis; beyond this number, the oldest are dropped."""
_LONGEST_ERROR = 20_000
_MARKS = {"breakpoint": "breakpoint", "edited": "edit", "forked": "fork"}
"""Keys: the names that the page uses."""


class Saved(Protocol):
    """A checkpoint in a panel's list."""

    @property
    def label(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, Mapping[str, float]]: ...
    @property
    def damage(self) -> str: ...


@dataclass(frozen=True, slots=True)
class BoardMark:
    """A mark for an event at a training step."""

    x: float
    kind: str
    text: str


@dataclass
class Board:
    """The state of a run for the page, computed from the run's events."""

    tally: Tally = field(default_factory=Tally)
    trained: int = 0
    """Training steps of the run up to its present position."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    marks: deque[BoardMark] = field(default_factory=lambda: deque(maxlen=MOST_MARKS))
    error: Json | None = None
    evaluated: dict[str, Evaluated] = field(default_factory=dict)
    sheets: KeptSheets = field(default_factory=KeptSheets)
    notes: bool = True
    """Whether events are noted in the log; a run of another process has its own log."""
    axes: RunAxes = field(default_factory=RunAxes)
    """How long the steps took."""
    _starts: dict[int, int] = field(default_factory=dict)

    def handle(self, event: Event, /) -> None:
        """Fold one event in."""
        self.tally.handle(event)
        match event:
            case MetricBlock():
                self.trained = event.iteration
                self.axes.add(event)
                if event.split == "train":  # no start comes from a run's files
                    self._starts.setdefault(event.epoch, event.iteration - event.last)
            case SplitStarted():
                if event.split == "train":
                    self._starts[event.epoch] = self.trained
                self.note(f"epoch {event.epoch}, {event.split}: {_batches(event.total)}")
            case SplitEnded():
                values = ", ".join(
                    f"{one_line(name)} {number(value)}" for name, value in event.finals.items()
                )
                self.note(f"epoch {event.epoch}, {event.split}: {values or 'over'}")
            case EpochEnded():
                self._mark("epoch", f"epoch {event.epoch}")
            case StatusChanged():
                self._status(event)
            case Marked():
                self._mark(_MARKS[event.kind], event.text)
                self.note(f"{event.kind}: {event.text}")
            case CheckpointSaved():
                self._mark("checkpoint", f"checkpoint {event.label}", self._place(event))
                self.note(f"checkpoint {event.label} saved, {size_text(event.size)}")
            case Evaluated():
                self.evaluated[event.name] = event
                self.note(evaluation(event))
            case Sheet():
                self.sheets.add(event)
            case Notice():
                self.note(event.text if event.level == "info" else f"{event.level}: {event.text}")
            case Rewound():
                self._rewound(event)
            case RunOpened():
                self._opened(event)
            case _:
                pass  # a kind of event that did not exist when this was written

    def failed(self, title: str, text: str) -> None:
        """Show an error and its origin."""
        self.error = {"title": one_line(title)[:500], "text": text[-_LONGEST_ERROR:]}

    def start_of(self, epoch: int) -> int:
        """The number of training steps before an epoch."""
        return self._starts.get(epoch, 0)

    # What is sent to the page

    def moving(self) -> Json:
        """What changes from step to step."""
        return {
            **self.place(),
            "trained": self.trained,
            "table": self._table(),
            "texts": [[one_line(name), one_line(text)] for name, text in self.tally.texts.items()],
            **self.axes.moving(self.trained),
        }

    def place(self) -> Json:
        """Where the run stands."""
        tally = self.tally
        speed, left = tally.pace.steps_per_second, tally.seconds_left()
        running, reason = tally.status == "running", one_line(tally.reason)
        if tally.tour is not None:
            reason = tour(tally.tour)
        stopped = tally.status == "paused" and self._at_breakpoint and self.marks[-1].text == reason
        return {
            "status": tally.status,
            "reason": f"stopped by {reason}" if stopped else reason,
            "stopped": stopped,
            "position": tally.place(),
            "epoch": tally.epoch,
            "split": tally.split,
            "step": tally.step,
            "total": tally.total,
            "num_epochs": tally.num_epochs,
            "progress": tally.progress,
            "rate": "" if speed is None else rate(speed, "steps"),
            "elapsed": duration(tally.pace.elapsed) if tally.pace.elapsed else "",
            "left": "" if left is None or not running else remaining(left),
        }

    def events(self) -> Json:
        """What changes when something happens."""
        return {
            "log": list(self.log),
            "marks": [{"x": mark.x, "kind": mark.kind, "text": mark.text} for mark in self.marks],
            "error": self.error,
            "evaluated": [self._evaluated(each) for each in self.evaluated.values()],
            "epochs": as_lists(epoch_knots(self._starts, self.trained, self.length)),
            **self.axes.seconds(self.trained),
        }

    @property
    def length(self) -> int | None:
        """The training steps of the latest epoch; None while that is not known."""
        latest = max(self._starts, default=0)
        if latest and self.tally.ended.get("train") == latest:
            return self.trained - self._starts[latest]
        return self.tally.totals.get("train")

    def _evaluated(self, event: Evaluated) -> Json:
        units = {info.name: one_line(info.unit) for info in event.metrics}
        finals = (event.record.finals or {}).items()
        return {
            "name": one_line(event.name),
            "values": [[one_line(name), number(value, units.get(name, ""))] for name, value in finals],
            "texts": [[one_line(name), one_line(text)] for name, text in _last_texts(event).items()],
            "batches": count(event.record.steps),
            "where": place(event.epoch, event.split, event.step, None) if event.epoch else "",
        }

    def fixed(self) -> Json:
        """What changes seldom during a run."""
        run = self.tally.run
        if run is None:
            return {
                "title": "",
                "directory": "",
                "path": "",
                "model": "",
                "parameters": "",
                "settings": [],
                "metrics": [],
                "sheets": [],
            }
        return {
            "title": one_line(PurePath(run.directory).name) or one_line(run.model),
            "directory": one_line(run.directory),
            "path": os.path.abspath(run.directory),
            "model": one_line(run.model),
            "parameters": count(run.parameters),
            "settings": [[one_line(name), one_line(str(value))] for name, value in run.settings.items()],
            "metrics": self._metrics(list(self.tally.infos.values())),
            "sheets": sheets_told(self.sheets),
        }

    def plotted(self) -> dict[Split, set[str]]:
        """The metrics with a curve."""
        return {
            split: {name for (name, of), info in self.tally.infos.items() if of == split and _has_curve(info)}
            for split in SPLITS
        }

    def _metrics(self, infos: Sequence[MetricInfo]) -> list[Json]:
        names = dict.fromkeys(info.name for info in infos if _has_curve(info))
        return [self._metric(name, [info for info in infos if info.name == name]) for name in names]

    def _metric(self, name: str, infos: Sequence[MetricInfo]) -> Json:
        better = infos[0].higher_is_better
        return {
            "name": name,
            "unit": one_line(infos[0].unit),
            "better": None if better is None else "higher" if better else "lower",
            "splits": [info.split for info in infos],
        }

    def _table(self) -> list[Json]:
        tally = self.tally
        an_epoch_is_over = tally.passes.get("train", 0) > 1 or tally.status == "finished"
        # The rows stay until then: they would otherwise come, and move what is below, with the first pass.
        splits = SPLITS if "valid" in tally.passes or not an_epoch_is_over else ("train",)
        return [
            self._row(name, split) for name in tally.names() for split in splits if tally.info(name, split)
        ]

    def _row(self, name: str, split: Split) -> Json:
        tally, unit = self.tally, one_line(self.tally.unit(name))
        best = tally.best(name, split)

        def shown(value: float | None) -> str:
            return "" if value is None else number(value)  # the unit stands at the name: columns are narrow

        return {
            "metric": one_line(name),
            "unit": unit,
            "split": split,
            "last": shown(tally.last(name, split)),
            "epoch": shown(tally.average(name, split)),
            "so_far": tally.open(split),
            "best": "" if best is None else shown(best[0]),
            "where": "" if best is None else f"({count(best[1])})",
        }

    # How events change the board

    def _opened(self, event: RunOpened) -> None:
        self.trained, self.error = 0, None
        self.evaluated.clear()
        self.sheets.clear()
        self._starts.clear()
        self.axes = RunAxes()
        self.marks.clear()
        self.note(f"{event.model}, {count(event.parameters)} parameters")

    def _status(self, event: StatusChanged) -> None:
        why = f": {one_line(event.reason)}" if event.reason else ""
        self.note(f"{event.status} at {self.tally.place()}{why}")
        if event.status == "running":
            self.error = None
        elif event.status == "paused" and not self._at_breakpoint:
            self._mark("pause", f"paused at {self.tally.place()}{why}")
        elif event.status == "failed" and self.error is None:
            self.failed(event.reason, "")

    @property
    def _at_breakpoint(self) -> bool:
        """Whether a breakpoint just hit here: then its mark also stands for the pause."""
        last = self.marks[-1] if self.marks else None
        return last is not None and (last.kind, last.x) == ("breakpoint", float(self.trained))

    def _rewound(self, event: Rewound) -> None:
        before, self.trained = self.trained, 0
        self.sheets.go_back(event)
        self._starts.clear()
        self.axes = RunAxes(event.record)
        for past in event.record:
            if past.split == "train":
                self._starts[past.epoch] = self.trained
                self.trained += past.steps
        kept = [mark for mark in self.marks if mark.x <= self.trained]
        self.marks.clear()
        self.marks.extend(sorted(dict.fromkeys([*kept, *self._epochs()]), key=lambda mark: mark.x))
        if before:  # else the event only informs a new display of the present state
            self._mark("rewind", f"back to {self.tally.place()}")
        self.note(f"now at {self.tally.place()}{': ' + one_line(event.reason) if event.reason else ''}")

    def _epochs(self) -> list[BoardMark]:
        """Marks at the ends of all epochs but the last."""
        starts = [(epoch, start) for epoch, start in self._starts.items() if start]
        return [BoardMark(float(start), "epoch", f"epoch {epoch - 1}") for epoch, start in starts]

    def _mark(self, kind: str, text: str, x: float | None = None) -> None:
        mark = BoardMark(float(self.trained if x is None else x), kind, one_line(text))
        with suppress(ValueError):  # an epoch ends again after a rewind into it
            self.marks.remove(mark)
        self.marks.append(mark)

    def _place(self, event: CheckpointSaved) -> float:
        """The step of a checkpoint. Its event comes when it is on the disk: training may be further."""
        start = self._starts.get(event.epoch)
        if start is None or event.split != "train":
            return float(self.trained)
        return float(start + event.step)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        if self.notes:
            self.log.append(f"{datetime.now():%H:%M:%S}  {one_line(text)}")


def _last_texts(event: Evaluated) -> Mapping[str, str]:
    """The values of text metrics for the whole set, which they have after its last batch."""
    blocks = event.record.blocks
    return blocks[-1].texts if blocks else {}


def checkpoints(saved: Iterable[Saved], best: str | None = None) -> list[Json]:
    """Checkpoints for the page, in the order they were saved; the page shows the newest first."""
    rows: list[dict[str, Any]] = [
        {
            "label": each.label,
            "place": each.place,
            "at": each.iteration,
            "size": size_text(each.size),
            "metrics": _values(each.metrics),
            "state": "damaged" if each.damage else "complete",
            "best": each.label == best,
        }
        for each in saved
    ]
    return rows


class Rank(Protocol):
    """One process of a training on several devices."""

    @property
    def rank(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def alive(self) -> bool: ...
    @property
    def step(self) -> int | None: ...
    @property
    def memory(self) -> int | None: ...
    @property
    def device_memory(self) -> int | None: ...
    @property
    def rate(self) -> float | None: ...


class Gauged(Protocol):
    """What is read from a learner at each message."""

    def _ranks(self) -> Sequence[Rank]: ...
    def _dials(self) -> Sequence[Mapping[str, str]]: ...
    def _device_memory(self) -> int | None: ...
    @property
    def _is_compact(self) -> bool: ...


def gauges(learner: Gauged | None) -> Json:
    """The training processes, the options that can be set, the memory of the device, and the size of the
    panel, as they are now."""
    if learner is None:
        return {"ranks": [], "dials": [], "memory": "", "compact": False}
    used = learner._device_memory()
    dials = [{key: one_line(text) for key, text in each.items()} for each in learner._dials()]
    memory = "" if used is None else size_text(used)
    told = {"ranks": ranks(learner._ranks()), "dials": dials, "memory": memory}
    return {**told, "compact": learner._is_compact}


def ranks(fleet: Sequence[Rank]) -> list[Json]:
    """The training processes for the page; empty for a single process, which needs no table."""
    return [_rank(each) for each in fleet] if len(fleet) > 1 else []


def _rank(info: Rank) -> Json:
    memory = info.memory if info.device_memory is None else info.device_memory
    return {
        "rank": info.rank,
        "device": one_line(info.device),
        "where": f"{one_line(info.host)}, process {info.pid}",
        "step": "" if info.step is None else count(info.step),
        "rate": "" if info.rate is None else rate(info.rate, "steps"),
        "memory": "" if memory is None else size_text(memory),
        "alive": info.alive,
    }


def _values(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """The validation values if there are any, else the training values."""
    values = metrics.get("valid") or metrics.get("train") or {}
    return ", ".join(f"{one_line(name)} {number(value)}" for name, value in values.items())


def _batches(total: int | None) -> str:
    return "started" if total is None else f"started, {count(total)} batches"


def _has_curve(info: MetricInfo) -> bool:
    return info.kind == "numeric" and info.plotted

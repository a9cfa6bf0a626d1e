"""The panel of one learner: takes its events, tells the pages three times a second at most, less often where
that takes long, carries out what they ask for.

Events come on the training thread, requests in the kernel's main thread, and both may be one: a cell that
trains is served between two blocks of steps. Nothing is sent while nobody looks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from ..errors import NotebookLearnerError
from ..event import (
    CheckpointSaved,
    Event,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Rewound,
    RunOpened,
    SetProgress,
    SplitEnded,
)
from ..event.join import joined
from ..steering.carry_out import Steering
from ..steering.command import CommandError
from . import board as boards
from .board import Board, Saved
from .controls import obstacles
from .curves import Curves
from .debugger import NOTHING, Debugger
from .shown_learner import ShownLearner
from .wire import Json, Message, Request, parse

INTERVAL = 0.3
"""Seconds between two messages, at least."""
IDLE_PER_COST, LONGEST = 600, 2.0
"""After a message, steps are not told before this many times as long as it took, nor later than after these
seconds: a sixth of a percent of the time where a message takes up to three milliseconds. The kernel's thread
that sends it takes as much again; and the next steps are slower, since the processor's caches hold something
else then, and a browser on the same machine draws: twice as much."""
MOST_BLOCKS = 256
"""Blocks of steps that wait to be folded in, at most: one at a time costs three times as much."""
PATIENCE = 60.0
"""Seconds after which a page that says nothing is taken for closed; an open one speaks every 20."""


class Wire(Protocol):
    """What carries messages: `view.View`, or a test."""

    def send(self, message: Message) -> None: ...
    def bundle(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Servant(Protocol):
    """What reaches a kernel that is busy: `shell.Servicing`."""

    @property
    def mode(self) -> str: ...

    def open(self) -> None: ...
    def serve(self) -> None: ...
    def close(self) -> None: ...


class Panel:
    """Shows one learner to any number of pages, and passes their requests on.

    Args:
        wire: makes what carries messages, given what takes them.
        servant: what reaches a busy kernel, where there is one.
    """

    def __init__(
        self, wire: Callable[[Callable[[object], None]], Wire], servant: Servant | None = None
    ) -> None:
        self._lock = threading.RLock()
        self._board, self._curves = Board(), Curves()
        self._blocks: list[MetricBlock] = []
        """Steps that neither of the two knows of yet: nobody is told of them before the interval is over."""
        self._learner: Callable[[], ShownLearner | None] = lambda: None
        self._servant = servant
        self._seq = 0
        self._sent = 0.0
        self._rest = 0.0
        """Seconds after that for which steps are not told."""
        self._later: threading.Timer | None = None
        self._fixed_changed = self._events_changed = self._files_changed = True
        self._files: list[Json] = []
        self._away = ""
        """Who else goes on with the run, as the pages know it."""
        self._debugger = Debugger()
        self._lookers: dict[str, float] = {}
        self._current = False
        """Whether the pages have all that was sent, so that news alone are enough."""
        self._blocking = False
        self.wire = wire(_weakly(self))

    def attach(self, learner: ShownLearner) -> None:
        """Show this learner; whoever makes the panel passes its events on. It is not kept alive."""
        self._learner = weakref.ref(learner)
        learner._tell(self)

    def show_files(self, saved: Sequence[Saved], lines: Iterable[str]) -> None:
        """What the files of a run tell beside its values, where no learner does."""
        with self._lock:
            self._files = boards.checkpoints(saved)
            self._board.notes = False
            self._board.log.clear()
            self._board.log.extend(lines)
            self._events_changed = True

    def close(self) -> None:
        """The learner is gone, or the panel was frozen."""
        with self._lock:
            self._lookers.clear()
        self.wire.close()

    # From the training thread ------------------------------------------------------------------------

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        with self._lock:
            if isinstance(event, MetricBlock):
                self._blocks.append(event)
                if len(self._blocks) >= MOST_BLOCKS:
                    self._fold_blocks()
            else:
                self._fold(event)
            if not _is_one_of_many(event):
                self._tell_soon()
            elif time.monotonic() >= self._sent + max(INTERVAL, self._rest):
                self._tell_steps()
        if self._servant is not None:
            self._servant.serve()

    @contextmanager
    def blocking(self) -> Iterator[Callable[[], None]]:
        """A cell trains or waits meanwhile: whoever clicks is served between its steps."""
        servant = self._servant
        if servant is None or threading.current_thread() is not threading.main_thread():
            yield lambda: None
            return
        servant.open()
        self._connected(blocking=True)
        try:
            yield servant.serve
        finally:
            servant.close()
            self._connected(blocking=False)

    def _connected(self, *, blocking: bool) -> None:
        with self._lock:
            self._blocking = blocking
            self._events_changed = True
            self._tell_soon()

    def _fold_blocks(self) -> None:
        blocks, self._blocks = self._blocks, []
        for block in joined(blocks):
            self._board.handle(block)
            self._curves.block(block, self._board.plotted()["train"])
            if block.split == "valid":
                self._validated()

    def _fold(self, event: Event) -> None:
        self._fold_blocks()
        self._board.handle(event)
        match event:
            case SetProgress(over=False):
                return
            case SplitEnded():
                if event.split == "valid":
                    self._validated()
                else:
                    self._trained(event)
            case MetricAdded():
                self._fixed_changed = True
                self._draw_from_the_past(event.info)
            case RunOpened():
                self._curves.clear()
                self._fixed_changed, self._current = True, False
            case Rewound():
                self._curves.rebuild(event.record, self._board.plotted())
                self._current = False
            case _:
                pass
        self._events_changed = True
        self._files_changed |= isinstance(event, (RunOpened, Rewound, CheckpointSaved))

    def _draw_from_the_past(self, info: MetricInfo) -> None:
        """A metric became known: what is restored may have values of it, told of before its name was."""
        learner = self._learner()
        record = () if learner is None else learner.history.snapshot()
        blocks = (block for past in record if past.split == info.split for block in past.blocks)
        if any(info.name in block.columns for block in blocks):
            self._curves.rebuild(record, self._board.plotted())
            self._current = False

    def _trained(self, event: SplitEnded) -> None:
        board = self._board
        start, end = float(board.start_of(event.epoch)), float(board.trained)
        self._curves.passed(event.finals, board.plotted()["train"], start, end)

    def _validated(self) -> None:
        """One point a pass, which moves until the pass is over."""
        board = self._board
        for name in board.plotted()["valid"]:
            value = board.tally.average(name, "valid")
            if value is not None:
                self._curves.point(name, "valid", float(board.trained), value)

    # To the pages --------------------------------------------------------------------------------------

    @property
    def _looked_at(self) -> bool:
        if self._blocking and self._servant is not None and self._servant.mode == "interrupt":
            return bool(self._lookers)  # nobody can be heard, so nobody's silence means anything
        now = time.monotonic()
        return any(until > now for until in self._lookers.values())

    def _tell_steps(self) -> None:
        """They need no thread that waits: others follow, or the end of the run does."""
        if self._looked_at:
            self._tell()
        else:
            self._miss()

    def _tell_soon(self) -> None:
        """Now, or once the interval is over: what came last is always told, to who looks later, too."""
        left = self._sent + INTERVAL - time.monotonic()
        if not self._looked_at:
            self._miss()
        elif left <= 0:
            self._tell()
        elif self._later is None:
            self._later = threading.Timer(left, self._tell_late)
            self._later.daemon = True
            self._later.start()

    def _tell_late(self) -> None:
        with self._lock:
            self._later = None
            self._tell_soon()

    def _miss(self) -> None:
        """Nobody looks, so nobody is told; whoever looks next is told everything."""
        self._current = False
        self._curves.forget()

    def _tell(self) -> None:
        began = time.monotonic()
        self._fold_blocks()
        self._seq += 1
        message = self._news() if self._current else self._everything()
        self._current = True
        self.wire.send(message)
        self._sent = time.monotonic()
        self._rest = min(IDLE_PER_COST * (self._sent - began), LONGEST)

    def _everything(self) -> Message:
        series = self._curves.series
        self._curves.forget()
        self._fixed_changed = self._events_changed = True
        return Message(
            {
                "type": "snapshot",
                "seq": self._seq,
                "board": self._changed(),
                "series": [_head(name, split, len(each)) for (name, split), each in series.items()],
            },
            tuple(each.tobytes() for each in series.values()),
        )

    def _news(self) -> Message:
        fresh = self._curves.fresh()
        return Message(
            {
                "type": "delta",
                "seq": self._seq,
                "board": self._changed(),
                "series": [_head(name, split, len(x)) for (name, split), x, _ in fresh],
            },
            tuple(x.astype("<f8").tobytes() + values.astype("<f8").tobytes() for _, x, values in fresh),
        )

    def _changed(self) -> Json:
        """The parts of the board that a page does not know yet."""
        board, learner = self._board, self._learner()
        if learner is not None:
            board.tally.num_epochs = learner.num_epochs  # set by a person, it is no event
            self._events_changed |= self._debugger.changed(learner)
        told = board.moving() | {"ranks": [] if learner is None else boards.ranks(learner._ranks())}
        if self._fixed_changed:
            told |= board.fixed() | {"readonly": learner is None}
        if self._events_changed or self._fixed_changed:
            told |= board.events()
            told |= self._state_of(learner)
        self._fixed_changed = self._events_changed = False
        return told

    def _state_of(self, learner: ShownLearner | None) -> Json:
        if learner is None:
            nobody = {"mode": "none", "text": ""}
            return {"controls": {}, "checkpoints": self._files, "connection": nobody, **NOTHING}
        if self._files_changed:
            self._files_changed = False
            # Not here: this may be the training's thread, which waits for no disk.
            threading.Thread(target=self._read_files, name="notebook_learner panel", daemon=True).start()
        told = self._debugger.told(learner, self._board.trained)
        reach = told["reach"]
        self._away = away = learner._elsewhere
        controls = obstacles(
            learner.status,
            begun=bool(self._board.trained),
            saved=bool(self._files),
            lacks=learner._lacks,
            kept=reach["from"] < reach["to"],
            away=away,
        )
        return {
            **told,
            "controls": controls,
            "checkpoints": self._files,
            "connection": {"mode": "away", "text": away} if away else self._connection(),
        }

    def _read_files(self) -> None:
        learner = self._learner()
        if learner is None or learner._elsewhere:  # what is there is another's
            return
        try:
            saved, best = learner._saved()
        except (NotebookLearnerError, OSError):  # the training itself tells of it, once it has to save
            return
        files = boards.checkpoints(saved, best)
        with self._lock:
            if files != self._files:
                self._files, self._events_changed = files, True
                self._tell_soon()

    def _connection(self) -> Json:
        mode = "background" if self._servant is None or not self._blocking else self._servant.mode
        return {"mode": mode, "text": _CONNECTIONS[mode]}

    # From the pages ------------------------------------------------------------------------------------

    def receive(self, content: object) -> None:
        """Take a message of a page, in whichever thread the kernel gives it."""
        try:
            request = parse(content)
        except CommandError as refused:
            self._answer(0, False, str(refused))
            return
        match request.command.cmd:
            case "hello" | "resync":
                self._looks(request.client, True)
                self._repeat()
            case "look":
                self._look(request)
            case _:
                self._obey(request)

    def _look(self, request: Request) -> None:
        visible = bool(request.command.args["visible"])
        with self._lock:
            behind = visible and not self._looked_at and not self._current
        self._looks(request.client, visible)
        if behind:
            self._repeat()
        elif visible:
            self._catch_up()

    def _catch_up(self) -> None:
        """What changed while nothing happened here: a cell adds a breakpoint without any event, another
        process goes on with a run that is over."""
        learner = self._learner()
        with self._lock:
            if learner is None or not self._current:
                return
            self._events_changed |= self._away != learner._elsewhere or self._debugger.changed(learner)
            if self._events_changed:
                self._tell_soon()

    def _looks(self, client: str, visible: bool) -> None:
        now = time.monotonic()
        with self._lock:
            self._lookers = {one: until for one, until in self._lookers.items() if until > now}
            if visible:
                self._lookers[client] = now + PATIENCE
            else:
                self._lookers.pop(client, None)

    def _repeat(self) -> None:
        """Everything anew, for a page that has nothing, or missed something."""
        with self._lock:
            self._current = False
            self._tell()

    def _obey(self, request: Request) -> None:
        learner = self._learner()
        if learner is None:
            self._answer(request.seq, False, "the learner is gone; this is what it had done")
            return
        steering = Steering(learner, failed=self._failed)
        # On a thread of its own: neither the kernel's main thread, which a cell may hold and which takes the
        # requests, nor the training waits for the verb. What a step prints belongs below the cell of now.
        work = partial(copy_context().run, self._do, steering, request)
        threading.Thread(target=work, name="notebook_learner panel", daemon=True).start()

    def _do(self, steering: Steering, request: Request) -> None:
        answer = steering.carry_out(request.command)
        self._answer(request.seq, answer.ok, answer.text)

    def _failed(self, title: str, text: str) -> None:
        with self._lock:
            self._board.failed(title, text)
            self._events_changed = True
            self._tell_soon()

    def _answer(self, seq: int, ok: bool, text: str) -> None:
        with self._lock:
            self._events_changed = True
            self.wire.send(Message({"type": "answer", "to": seq, "ok": ok, "text": text}))
            self._tell_soon()


def _is_one_of_many(event: Event) -> bool:
    """Whether others like it follow in a moment."""
    return isinstance(event, MetricBlock) or (isinstance(event, SetProgress) and not event.over)


def _head(name: str, split: str, points: int) -> Json:
    return {"metric": name, "split": split, "points": points}


def _weakly(panel: Panel) -> Callable[[object], None]:
    """What takes messages, without keeping the panel: every widget is kept until it is closed."""
    known = weakref.ref(panel)

    def receive(content: object) -> None:
        here = known()
        if here is not None:
            here.receive(content)

    return receive


_CONNECTIONS = {
    "boundary": "a cell is training; buttons act at its next step",
    "subshell": "a cell is training; buttons act at its next step where the page uses subshells (JupyterLab)",
    "background": "",
    "interrupt": "a cell is training, and this kernel hears only its interrupt button until it is over",
}

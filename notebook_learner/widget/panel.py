"""The panel of one learner: takes its events, updates the pages, and carries out their requests.

It updates the pages three times a second at most, less often if a message takes long. Events come on the
training thread, requests on the kernel's main thread. Both may be the same thread: then requests are served
between two blocks of steps of the training cell. Nothing is sent while no page is visible.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    Sheet,
    SplitEnded,
)
from ..event.record import joined
from ..renderer.text import one_line
from ..steering.carry_out import Steering
from ..steering.command import CommandError
from . import board as boards
from . import saved_table
from .board import Board, Saved, obstacles
from .branch_lines import BranchLines, LeftBranches
from .curves import Curves
from .message_pace import MessagePace
from .shown_learner import NOTHING, Debugger, ShownLearner
from .wire import Json, Message, Request, parse

MOST_BLOCKS = 256
"""Blocks of steps that wait to be added, at most. Adding them one by one costs three times as much."""
BEAT = 1.5
"""Seconds without news after which the pages get a beat, by which they tell a kernel that waits from one that
is gone. It comes from a thread of its own, so a busy kernel beats, too."""
PATIENCE = 60.0
"""Seconds after which a silent page counts as closed; an open page sends a message every 20 seconds."""


class Wire(Protocol):
    """Carries messages: `view.View`, or a test's own."""

    def send(self, message: Message) -> None: ...
    def bundle(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Servant(Protocol):
    """Handles messages while the kernel is busy: `shell.Servicing`."""

    @property
    def mode(self) -> str: ...
    @property
    def is_here(self) -> bool: ...
    def open(self) -> None: ...
    def serve(self) -> None: ...
    def close(self) -> None: ...


class Panel:
    """Shows one learner to any number of pages, and passes their requests on.

    Args:
        wire: makes the carrier of messages from the function that takes them.
        servant: handles messages while the kernel is busy, if there is a kernel.
    """

    def __init__(
        self, wire: Callable[[Callable[[object], None]], Wire], servant: Servant | None = None
    ) -> None:
        self._lock = threading.RLock()
        self._board, self._curves = Board(), Curves()
        self._blocks: list[MetricBlock] = []
        """Steps that neither of the two has yet: no page gets them before the interval is over."""
        self._learner: Callable[[], ShownLearner | None] = lambda: None
        self._servant = servant
        self._seq = 0
        self._pace = MessagePace()
        self._later: threading.Timer | None = None
        self._beats = False
        self._fixed_changed = self._events_changed = self._files_changed = True
        self._files: list[Json] = []
        self._branches = BranchLines()
        self._branches_seen = -1
        """Which changes of the branches the lines know, by the learner's count; -1 for none."""
        self._reads_branches = False
        self._since = time.time()
        self._away = ""
        """Which other process or learner continues the run, as last sent to the pages."""
        self._debugger = Debugger()
        self._compact = False
        """Whether the pages show a strip, as last sent."""
        self._lookers: dict[str, float] = {}
        self._current = False
        """Whether the pages have all that was sent, so that sending only the changes is enough."""
        self._blocking = self._hears = False
        """Whether a cell trains or waits; whether the latest message came on a subshell, beside all cells."""
        self.before_saving: Callable[[], bool] = lambda: False
        """Called when a page saves the notebook; returns whether an output was changed."""
        self.wire = wire(_weakly(self))

    def attach(self, learner: ShownLearner) -> None:
        """Show this learner, without keeping it alive. The panel's owner passes the learner's events on."""
        self._learner = weakref.ref(learner)
        learner._tell(self)

    def show_files(self, saved: Sequence[Saved], lines: Iterable[str]) -> None:
        """Show a run's checkpoints and log lines from its files, if there is no learner."""
        with self._lock:
            self._files = boards.checkpoints(saved)
            self._board.notes = False
            self._board.log.clear()
            self._board.log.extend(lines)
            self._events_changed = True

    def show_branches(self, left: LeftBranches) -> None:
        """Read and show the lines that a run has left. Any thread may call this."""
        with self._lock:
            before, names, length = self._branches, self._board.plotted(), self._board.length
        branches = before.read(left, names, length)
        with self._lock:
            for line in branches.left_since(before, self._since):
                self._board.note(line)
            self._branches = branches
            if (branches.told, branches.curves) != (before.told, before.curves):
                self._events_changed, self._current = True, False
                self._tell_soon()

    def epochs(self) -> Json:
        """The epochs so far as a table, by mime type, for a notebook that is opened without a kernel."""
        with self._lock:
            self._fold_blocks()
            tally = self._board.tally
            return {"text/html": saved_table.html_of(tally), "text/plain": saved_table.text_of(tally)}

    def close(self) -> None:
        """Close the panel: it was frozen."""
        with self._lock:
            self._lookers.clear()
        self.wire.close()

    def leave(self) -> None:
        """Close the panel, because its learner is gone. The pages keep a picture of it with a line."""
        self.wire.send(Message({"type": "over"}))
        self.close()

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
            elif due := self._pace.due():
                self._tell_now(values=due == "values")
        if self._servant is not None:
            self._servant.serve()

    @contextmanager
    def blocking(self) -> Iterator[Callable[[], None]]:
        """A context in which a cell trains or waits: clicks are served between its steps."""
        servant = self._servant
        if servant is None or not servant.is_here:
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
                self._branches, self._branches_seen = BranchLines(), -1
                self._fixed_changed, self._current = True, False
            case Rewound():
                self._curves.rebuild(event.record, self._board.plotted())
                self._fixed_changed, self._current, self._branches_seen = True, False, -1
            case Sheet():
                self._fixed_changed = True
        self._events_changed = True
        self._files_changed |= isinstance(event, (RunOpened, Rewound, CheckpointSaved))

    def _draw_from_the_past(self, info: MetricInfo) -> None:
        """Draw a newly known metric: a restored run may have sent its values before its name."""
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
        """Set the point of a validation pass; its value changes until the pass is over."""
        board = self._board
        for name in board.plotted()["valid"]:
            value = board.tally.average(name, "valid")
            if value is not None:
                self._curves.point(name, "valid", float(board.trained), value)

    # To the pages --------------------------------------------------------------------------------------

    @property
    def _looked_at(self) -> bool:
        if self._blocking and self._servant is not None and self._servant.mode == "interrupt":
            return bool(self._lookers)  # no page can be heard now, so a silent page may be open
        now = time.monotonic()
        return any(until > now for until in self._lookers.values())

    def _tell_now(self, values: bool = True) -> None:
        """Send now, if a page looks."""
        if self._looked_at:
            self._tell(values)
        else:
            self._miss()

    def _tell_soon(self) -> None:
        """Send now, or once the interval is over, so that the last event always reaches the pages."""
        left = self._pace.wait
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
        """Send nothing, because no page is visible. The next visible page gets everything."""
        self._current = False
        self._curves.forget()

    def _tell(self, values: bool = True) -> None:
        began = time.monotonic()
        self._seq += 1
        if values := values or not self._current:
            self._fold_blocks()
            message = self._news() if self._current else self._everything()
        else:
            message = self._place()
        self._current = True
        self.wire.send(message)
        self._pace.was_sent(began, values)

    def _everything(self) -> Message:
        own, left = self._curves.series, self._branches.series()
        self._curves.forget()
        self._fixed_changed = self._events_changed = True
        return Message(
            {
                "type": "snapshot",
                "seq": self._seq,
                "board": self._changed(),
                "series": [
                    *(
                        _head(name, split, len(each)) | {"size": each.size}
                        for (name, split), each in own.items()
                    ),
                    *(
                        _head(name, split, len(each)) | {"branch": branch}
                        for (branch, name, split), each in left.items()
                    ),
                ],
            },
            tuple(each.tobytes() for each in (*own.values(), *left.values())),
        )

    def _place(self) -> Message:
        """Where the run stands, without what it has measured: that takes no longer with more metrics."""
        if self._blocks:
            self._board.tally.stands_behind(self._blocks[-1])
        return Message({"type": "delta", "seq": self._seq, "board": self._board.place(), "series": []})

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
            board.tally.num_epochs = learner.num_epochs  # the user's own assignment sends no event
            self._events_changed |= self._debugger.changed(learner)
            self._look_at_branches(learner)
        told = board.moving() | boards.gauges(learner)
        self._compact = told["compact"]
        if self._fixed_changed:
            told |= board.fixed() | {"readonly": learner is None}
        if self._events_changed or self._fixed_changed:
            told |= board.events()
            told |= self._state_of(learner)
        self._fixed_changed = self._events_changed = False
        return told

    def _state_of(self, learner: ShownLearner | None) -> Json:
        if learner is None:
            shown = {"checkpoints": self._files, "branches": self._branches.told}
            return {"controls": {}, "connection": {"mode": "none", "text": ""}, **shown, **NOTHING}
        if self._files_changed:
            self._files_changed = False
            # Not on this thread: it may be the training thread, which must not wait for a disk.
            threading.Thread(target=self._read_files, name="notebook_learner panel", daemon=True).start()
        told = self._debugger.told(learner, self._board.trained)
        reach = told["reach"]
        self._away = away = learner._elsewhere
        connection = {"mode": "away", "text": away} if away else self._connection()
        controls = obstacles(
            learner.status,
            begun=bool(self._board.trained),
            saved=bool(self._files),
            lacks=learner._lacks,
            kept=reach["from"] < reach["to"],
            away=connection["text"] if connection["mode"] in ("away", "interrupt") else "",
        )
        return {
            **told,
            "controls": controls,
            "checkpoints": self._files,
            "branches": self._branches.told,
            "connection": connection,
        }

    def _read_files(self) -> None:
        learner = self._learner()
        if learner is None or learner._elsewhere:  # another one writes these files now
            return
        try:
            saved, best = learner._saved()
        except (NotebookLearnerError, OSError):  # the training reports it at its next save
            return
        files = boards.checkpoints(saved, best)
        with self._lock:
            if files != self._files:
                self._files, self._events_changed = files, True
                self._tell_soon()

    def _look_at_branches(self, learner: ShownLearner) -> None:
        """Read the branches if there was a change, on a thread of its own: training waits for no file."""
        if learner._branch_changes == self._branches_seen or self._reads_branches:
            return
        self._reads_branches = True
        threading.Thread(target=self._read_branches, name="notebook_learner panel", daemon=True).start()

    def _read_branches(self) -> None:
        try:
            while (learner := self._behind_the_branches()) is not None:
                with suppress(NotebookLearnerError, OSError):  # what is being moved now is read once it is
                    self.show_branches(learner._left())
        except BaseException:
            self._reads_branches = False
            raise

    def _behind_the_branches(self) -> ShownLearner | None:
        """The learner, if its branches have changed since they were read; counts them as read."""
        with self._lock:
            learner = self._learner()
            if learner is None or learner._elsewhere or learner._branch_changes == self._branches_seen:
                self._reads_branches = False
                return None
            self._branches_seen = learner._branch_changes
            return learner

    def _connection(self) -> Json:
        mode = "background" if self._servant is None or not self._blocking else self._servant.mode
        return {"mode": mode, "text": _CONNECTIONS[mode], "hears": self._hears}

    # From the pages ------------------------------------------------------------------------------------

    def receive(self, content: object) -> None:
        """Take a message of a page, on any thread of the kernel."""
        try:
            request = parse(content)
        except CommandError as refused:
            seq = content.get("seq") if isinstance(content, dict) else None
            self._answer(seq if type(seq) is int else 0, False, str(refused))
            return
        if self._servant is not None:
            self._events_changed |= self._hears is self._servant.is_here
            self._hears = not self._servant.is_here
        match request.command.cmd:
            case "hello" | "resync":
                self._looks(request.client, True)
                self._repeat()
            case "look":
                self._look(request)
            case "saving":
                _on_a_thread(self._save_soon)  # a picture takes time, and the training waits for this one
            case "overlay":
                _on_a_thread(self._lay_over, request)  # so does a run's log
            case _:
                self._obey(request)

    def _lay_over(self, request: Request) -> None:
        learner = self._learner()
        try:
            args = request.command.args
            text = _GONE if learner is None else learner._lay_over(args["run"], args["shown"])
            self._answer(request.seq, learner is not None, text)
        except Exception as error:  # files of others: whatever is wrong with them, the page gets an answer
            self._answer(request.seq, False, one_line(str(error)))

    def _save_soon(self) -> None:
        if self.before_saving():
            self.wire.send(Message({"type": "save"}))

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
        """Find changes that send no event: a cell adds a breakpoint, or another process continues the run."""
        learner = self._learner()
        with self._lock:
            if learner is None or not self._current:
                return
            if not learner._elsewhere:
                self._look_at_branches(learner)
            self._events_changed |= self._away != learner._elsewhere or self._debugger.changed(learner)
            self._events_changed |= self._compact != learner._is_compact
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
        self._begin_to_beat()

    def _begin_to_beat(self) -> None:
        with self._lock:
            if self._beats or not self._looked_at:
                return
            self._beats = True
        threading.Thread(
            target=_beat, args=(weakref.ref(self),), name="notebook_learner panel beat", daemon=True
        ).start()

    def _beats_on(self) -> bool:
        """Send a beat if there was no news; return whether a page still looks."""
        self._catch_up()
        with self._lock:
            self._beats = self._looked_at
            if self._beats and time.monotonic() >= self._pace.sent + BEAT:
                self.wire.send(Message({"type": "beat"}))
            return self._beats

    def _repeat(self) -> None:
        """Send everything again, for a page that has nothing yet or missed a message."""
        with self._lock:
            self._current = False
            self._tell()

    def _obey(self, request: Request) -> None:
        learner = self._learner()
        if learner is None:
            self._answer(request.seq, False, _GONE)
            return
        steering = Steering(learner, failed=self._failed)
        # On a new thread: the training must not wait for the command, nor the kernel's main thread, which
        # takes the requests and may run a cell.
        _on_a_thread(self._do, steering, request)

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
            self._tell_now()  # first, so that a page which has its answer shows what came of it
            self.wire.send(Message({"type": "answer", "to": seq, "ok": ok, "text": text}))


def _on_a_thread(work: Callable[..., None], *args: object) -> None:
    """Do it on a new thread. The copied context puts prints below the present cell."""
    call = partial(copy_context().run, work, *args)
    threading.Thread(target=call, name="notebook_learner panel", daemon=True).start()


def _beat(known: weakref.ref[Panel]) -> None:
    while not threading.Event().wait(BEAT):
        panel = known()
        if panel is None or not panel._beats_on():
            return
        del panel


def _is_one_of_many(event: Event) -> bool:
    """Whether similar events follow soon."""
    return isinstance(event, MetricBlock) or (isinstance(event, SetProgress) and not event.over)


def _head(name: str, split: str, points: int) -> Json:
    return {"metric": name, "split": split, "points": points}


def _weakly(panel: Panel) -> Callable[[object], None]:
    """The function that takes messages. It does not keep the panel alive, though an open widget keeps it."""
    known = weakref.ref(panel)

    def receive(content: object) -> None:
        here = known()
        if here is not None:
            here.receive(content)

    return receive


_GONE = "the learner is gone; this is what it had done"
_CONNECTIONS = {
    "boundary": "a cell is training; buttons act at its next step",
    "subshell": "a cell is training; buttons act at its next step if the page uses subshells (JupyterLab)",
    "background": "",
    "interrupt": "a cell is training, and this kernel hears only its interrupt button until it is over",
}

"""Every error that the package raises for a user, in one tree.

    Exception
    └── NotebookLearnerError
        ├── ConfigurationError    mistakes in a LearnerBuilder, all of them at once
        ├── StepError             the learner cannot train on what a step returned
        │   ├── LossError         the loss is not a scalar tensor, or needs no gradient
        │   └── OutputError       the output lacks a field that a metric reads
        ├── DataError             a loader yields nothing, or cannot be walked again
        ├── StateError            a captured state does not fit this learner
        ├── BusyError             two drivers at once, or a question that needs a paused learner
        ├── LoggerError           a metric logger failed; what it could not write is kept
        ├── RankDied              the process of one of several devices has ended; the others wait
        ├── DetachError           a run could not be handed to a process of its own; it is where it was
        ├── RemoteError           a run cannot be controlled: no process runs it, or it is another user's
        └── StoreError            an error with a file of the artifact directory
            ├── CheckpointError   a checkpoint cannot be written; training can go on
            └── DamagedError      a file is damaged, cut short, or not one of this package
    KeyboardInterrupt
    └── Paused                    the user paused a blocking call, or a breakpoint stopped it

A message says what was given, why it is not possible, and what to do instead.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def a_kind(value: object) -> str:
    """The type of a value, or a type itself, as a message says it.

    >>> a_kind(3), a_kind([1, 2]), a_kind(float)
    ('an int', 'a list', 'a float')
    """
    name = (value if isinstance(value, type) else type(value)).__name__
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


_REMEDIES = {
    errno.ENOSPC: "Free some space there",
    errno.EDQUOT: "Free some of your quota there, or have it raised",
    errno.ENOENT: "Put back what was moved or removed there",
    errno.ELOOP: "Put a plain file or directory in the place of the link",
    errno.ENOTDIR: "Move the file away that lies in the place of a directory",
    errno.EISDIR: "Move the directory away that lies in the place of the file",
    errno.EACCES: "Give yourself the right to write there (chmod u+rwX)",
    errno.EPERM: "Give yourself the right to write there (chmod u+rwX)",
    errno.EROFS: "Have that file system mounted for writing",
    errno.EMFILE: "Close files that this process holds open, or raise its limit (ulimit -n)",
    errno.ENFILE: "Close files that are open on this machine",
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f)",
    errno.ENOMEM: "Free some memory",
    errno.EIO: "Look whether the disk is sound (the kernel's log, dmesg, says more)",
    errno.ESTALE: "Have the network file system mounted again",
}


def remedy(error: BaseException) -> str:
    """What the user can do about an error of the operating system, as the beginning of a sentence. An error
    with a message of this package already says it.

    >>> remedy(OSError(errno.ENOSPC, "No space left on device"))
    'Free some space there'
    """
    plain = isinstance(error, OSError) and error.errno and error.strerror == os.strerror(error.errno)
    return _REMEDIES.get(error.errno, "Remove the cause") if plain else "Remove the cause"  # type: ignore


def wrong_arguments(function: object, *given: str) -> str:
    """Why a function cannot be called with these arguments; "" if it can, or if that is not known.

    >>> wrong_arguments(lambda: 0, "the learner")
    'it is called with one argument, the learner, and takes none'
    >>> wrong_arguments(lambda output, targets: 0, "the output", "the targets")
    ''
    """
    if hasattr(function, "named_modules"):  # a torch layer passes all arguments on to this
        function = getattr(function, "forward", function)
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a function in C has no signature
        return ""
    try:
        signature.bind(*given)
    except TypeError:
        number = ("no argument", "one argument", "two arguments", "three arguments")[len(given)]
        takes = ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())
        said = f"takes ({takes})" if takes else "takes none"
        return f"it is called with {number}, {' and '.join(given)}, and {said}"
    return ""


class NotebookLearnerError(Exception):
    """The base class: `except NotebookLearnerError` catches every error that this package raises on
    purpose."""


class ConfigurationError(NotebookLearnerError, ValueError):
    """A `LearnerBuilder` cannot build a learner, or a training cannot begin.

    Attributes:
        mistakes: every mistake of the configuration, one line each.
    """

    def __init__(self, mistakes: Sequence[str], what: str = "this learner cannot be built") -> None:
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = what + (":" if count == 1 else f", for {count} reasons:")
        super().__init__("\n".join([head, *(f"  - {mistake}" for mistake in self.mistakes)]))


class StepError(NotebookLearnerError):
    """The learner cannot train on what a `train_step` or `valid_step` returned."""


class LossError(StepError, ValueError):
    """The loss is not a scalar tensor that requires a gradient."""


class OutputError(StepError, AttributeError):
    """The step's output lacks a field that a metric needs."""


class DataError(NotebookLearnerError):
    """A loader yields nothing, or cannot be brought back to a position."""


class StateError(NotebookLearnerError):
    """A captured state does not fit the learner that should restore it."""


def marimo_here() -> Any:
    """Return the module marimo if a page of marimo uses this thread; else None. It never loads marimo."""
    marimo = sys.modules.get("marimo")
    is_here = getattr(marimo, "running_in_notebook", None)  # another thread may be importing it
    return marimo if is_here is not None and is_here() else None


def marimo_runs_an_app() -> bool:
    """Whether this is `marimo run`: many visitors, each in a thread, who see no prints and no errors."""
    marimo = marimo_here()
    return marimo is not None and marimo.app_meta().mode == "run"


def shown_in_marimo(text: str) -> Any:
    """Return a paragraph for the output of a cell of marimo."""
    return sys.modules["marimo"].Html(f"<p>{escape(text)}</p>")


@cache
def _that_stops(kind: Any, stop: Any) -> Any:
    """The same error, which is marimo's `mo.stop` as well: its cell shows a text and no traceback, the cells
    that need it are told, and `marimo run` shows it, too, where other errors have no text."""
    own = {"__module__": kind.__module__, "__doc__": kind.__doc__, "output": property(_below_the_cell)}
    return type(kind.__name__, (kind, stop), own)


def _below_the_cell(error: BaseException) -> Any:
    """What marimo shows below the cell: what is there, such as the panel, and the error's text."""
    marimo, line = sys.modules["marimo"], shown_in_marimo(str(error))
    context: Any = None
    try:  # private parts: without them, the text takes the panel's place
        context = sys.modules["marimo._runtime.context.types"].safe_get_context()
        there = context.execution_context.output.stack()
    except (KeyError, AttributeError):
        there = None
    shown = line if there is None else marimo.vstack([there, line])
    return _InAnApp(shown, context) if marimo_runs_an_app() else shown


class _InAnApp:
    """What `marimo run` shows below a cell that paused.

    `Paused` is a KeyboardInterrupt, so marimo takes it for its interrupt button, which an app has not, and
    visitors would read of an internal error in each cell that was still to run. When marimo asks for the
    output, it has noted an interrupt: the note is taken back.
    """

    def __init__(self, shown: Any, context: Any) -> None:
        self._shown, self._context = shown, context

    def _mime_(self) -> Any:
        scheduler: Any = getattr(self._context, "active_scheduler", None)
        if getattr(scheduler, "interrupted", False):
            scheduler.interrupted = False
        return self._shown._mime_()


class BusyError(NotebookLearnerError, RuntimeError):
    """Another call or thread is using the learner right now."""

    def __new__(cls, *given: Any) -> Any:
        kind: Any = cls
        if marimo_runs_an_app():
            kind = _that_stops(kind, sys.modules["marimo"].MarimoStopError)
        return RuntimeError.__new__(kind, *given)


class LoggerError(NotebookLearnerError):
    """A metric logger failed. Training is paused at a step boundary; nothing before it is lost."""


class RankDied(NotebookLearnerError):
    """A process of a training on several devices died, or was stopped.

    `learner.devices.restart()` starts it again.

    Attributes:
        rank: its rank.
        host: the machine that it ran on.
        pid: its process number on that machine.
        reason: how it ended, if that is known.
        where: the step that it did not finish.
        survivors: the ranks that still run.
    """

    def __init__(
        self,
        rank: int,
        host: str,
        pid: int,
        reason: str,
        where: str,
        survivors: Sequence[int],
        kept: str = "",
    ) -> None:
        self.rank, self.host, self.pid, self.reason = rank, host, pid, reason
        self.where, self.survivors = where, tuple(survivors)
        alive = ", ".join(map(str, survivors))
        others = f"rank {alive} is" if len(self.survivors) == 1 else f"ranks {alive} are"
        super().__init__(
            f"rank {rank} (host {host}, process {pid}) {reason} in the step after {where}; {others} alive"
            f"{kept}. learner.devices.restart() starts the ranks anew, and fit() then goes on"
        )


class DetachError(NotebookLearnerError):
    """A run could not be handed to a process of its own: it did not begin there. The learner is where it was,
    and can go on with the training."""


class RemoteError(NotebookLearnerError):
    """A run cannot be controlled from another process: no process runs it, or it belongs to another user."""


class StoreError(NotebookLearnerError):
    """An error with a file of the artifact directory."""


class CheckpointError(StoreError):
    """A checkpoint cannot be written, or cannot hold what it should. The training itself is intact."""


class MovedError(CheckpointError):
    """The run's directory was moved during the training. Another directory, or none, is now in its place.

    Nothing was written to that one. Training is paused, and the training itself is intact."""


class DamagedError(StoreError):
    """A file is damaged, cut short, or not one of this package; no part of it was used."""


class NoDescriptorsError(StoreError, OSError):
    """This process, or the machine, has reached its limit of open files."""

    def __str__(self) -> str:
        return str(self.strerror)


class Paused(KeyboardInterrupt):
    """Ends a blocking `fit` after Pause, the interrupt button or Ctrl-C, or at a breakpoint.

    It is a KeyboardInterrupt, so that "Run all cells" stops here and an `except Exception` around
    `fit` (a hyper-parameter search, for one) does not swallow a user's wish to stop.
    """

    def __new__(cls, *given: Any, **named: Any) -> Any:
        kind: Any = cls
        if (marimo := marimo_here()) is not None:
            kind = _that_stops(kind, marimo.MarimoStopError)
        return KeyboardInterrupt.__new__(kind, *given)

    def __init__(self, where: str, why: str = "", told: str = "") -> None:
        self.where = where
        self.why = why
        """The breakpoint that stopped it, and what it found; "" if the user paused."""
        head = f"stopped by {why}; it stands" if why else "paused"
        super().__init__(told or f"{head} at {where}; fit() goes on from here, learner.step() takes one step")

    def _render_traceback_(self) -> list[str]:
        """Show one quiet line in IPython, which calls this before it shows an exception. IPython keeps the
        traceback until the next error, and the frames in it would keep the learner, so they are cleared."""
        for frame, _ in traceback.walk_tb(self.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith(f"{__package__}."):
                with suppress(RuntimeError):  # the frame still runs
                    frame.clear()
        return [str(self)]


def enough_descriptors(error: OSError, path: object = None) -> OSError:
    """Return the error itself, or one that says what to do if no file descriptor is left."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return error
    whose = "this process has" if error.errno == errno.EMFILE else "all processes of this machine have"
    # For an open directory that is listed, `path` is its number.
    place = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None
    what = "a file or directory" if place is None else repr(place)
    return NoDescriptorsError(
        error.errno,
        f"{what} cannot be opened: {whose} as many files open as the system allows. Close some (datasets, "
        "loaders' workers, plots' files), or allow more before the kernel starts: ulimit -n 4096",
        place,
    )


def names_descriptors(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function say what to do if no file descriptor is left. It also covers a module, of this package
    or of a library, that cannot be loaded at its first use."""

    @wraps(function)
    def naming(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except OSError as error:
            told = enough_descriptors(error, error.filename)
            if told is error or isinstance(error, StoreError):
                raise
            raise told from error

    return naming

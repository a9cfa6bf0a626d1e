"""From a page's request to the learner's verb, and what came of it in one line.

Each verb gets a thread of its own, so that neither the kernel's main thread (which a blocking cell may hold,
and which takes the requests) nor the training waits for it. The learner itself says no where two do not go
together.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass

from ..errors import BusyError, NotebookLearnerError
from .debugger import switch
from .steering import Steering
from .wire import Request

PATIENCE = 2.0
"""Seconds that a request waits for a learner that stands, and still has something to finish."""
_STANDS = ("ready", "paused", "stopped", "finished")

Answer = Callable[[bool, str], None]
Failed = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Commands:
    """Carries requests out on a learner."""

    learner: Steering
    failed: Failed
    """Told of an exception in the user's code: its last line, and the traceback."""

    def carry_out(self, request: Request, answer: Answer) -> None:
        """Begin what a page asks for; `answer` is called once, from another thread."""
        context = copy_context()  # what a step prints belongs below the cell of now
        threading.Thread(
            target=context.run, args=(self._done, request, answer), name="notebook_learner panel", daemon=True
        ).start()

    def _done(self, request: Request, answer: Answer) -> None:
        try:
            text = self._once_it_stands(request)
        except KeyboardInterrupt:  # Paused: somebody wanted that
            answer(True, "paused")
        except (NotebookLearnerError, ValueError) as refused:
            answer(False, str(refused))
        except BaseException as error:
            title = f"{type(error).__name__}: {error}"
            self.failed(title, traceback.format_exc())
            answer(False, title)
        else:
            answer(True, text)

    def _once_it_stands(self, request: Request) -> str:
        """A learner tells that it stands a moment before it can be moved: it may save a checkpoint first.
        Whoever clicks in that moment means what he sees."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._do(request)
            except BusyError:
                if self.learner.status not in _STANDS or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _do(self, request: Request) -> str:
        learner, args = self.learner, request.args
        match request.cmd:
            case "run":
                learner.start()
                learner.wait()
                return learner.status
            case "pause":
                learner.pause()
                return "paused"
            case "stop":
                learner.stop()
                return "stopped"
            case "step":
                return str(learner.step(args["n"]))
            case "step_epoch":
                return str(learner.step_epoch())
            case "rewind":
                return str(learner.rewind(args["n"]))
            case "rewind_to":
                return str(learner.rewind(to=args["step"]))
            case "breakpoint":
                return switch(learner, args["name"], args["on"])
            case "inspect":
                return f"inspected at {learner.inspect(rank=args['rank']).place}"
            case "save":
                return f"saved as {learner.save()}"
            case "restore":
                learner.restore(args["label"])
                return f"restored {args['label']}"
            case "epochs":
                learner.num_epochs = args["n"]
                return f"trains up to epoch {args['n']}"
            case other:
                raise ValueError(f"this learner cannot {other}")

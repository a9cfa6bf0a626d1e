"""From a request to the learner's verb, and what came of it in one line.

What acts is written to the application log first, at a step boundary, with who asked; then it is done. A
question (`status`) holds nothing up: it is answered first, and written down at the boundary that comes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import BusyError, LoggerError, NotebookLearnerError
from .protocol import Answer, Request, group_of
from .steering import Steering


class RefusedError(ValueError):
    """What cannot be done as the learner stands."""


@dataclass(frozen=True, slots=True)
class Commands:
    """Carries out what one process asks."""

    learner: Steering
    asker: str
    changed: Callable[[], None] = lambda: None
    """Called where something that a step reads was changed by hand, while the learner stands still."""

    def carry_out(self, request: Request) -> Answer:
        """Do it; returns once it is done, whatever becomes of it."""
        try:
            return self._do(request)
        except KeyboardInterrupt:  # Paused: somebody wanted that
            return Answer(True, f"paused at {self.learner.position}")
        except (NotebookLearnerError, ValueError) as refused:
            return self._failed(request, f"refused: {_in_one_line(refused)}")
        except BaseException as error:  # of the user's code; the run's status and log tell of it as well
            return self._failed(request, f"{type(error).__name__}: {_in_one_line(error)}")

    def note_question(self, request: Request) -> None:
        """Write down what has been answered without waiting for a boundary."""
        if request.cmd == "status":
            self._note(str(request))

    def _failed(self, request: Request, text: str) -> Answer:
        if request.cmd != "status":
            self._note(f"{request} {text}")
        return Answer(False, text.removeprefix("refused: "))

    def _do(self, request: Request) -> Answer:
        learner = self.learner
        match request.cmd:
            case "status":
                return _status(learner)
            case "pause":
                self._ask(request, learner.pause)
                return self._standing()
            case "stop":
                self._ask(request, learner.stop)
                return self._standing()
            case "resume":
                self._say(request)
                self._resume()
                return Answer(True, f"goes on from {learner.position}")
            case "step":
                self._say(request)
                return Answer(True, str(learner.step(request.args["n"])))
            case "save":
                self._say(request)
                return Answer(True, f"saved as {learner.save()}")
            case "set":
                return Answer(True, self._set(request))
            case other:
                raise RefusedError(f"this learner cannot {other}")

    # Each of them ------------------------------------------------------------------------------------

    def _ask(self, request: Request, verb: Callable[[], None]) -> None:
        """A request to the loop. Made while it is held, it is answered at this very boundary."""
        with self.learner.paused():
            self._say(request)
            verb()
        with suppress(BusyError):  # it is over by now
            verb()  # again, as inside the block it could not wait until the learner stands

    def _standing(self) -> Answer:
        return Answer(True, f"{self.learner.status} at {self.learner.position}")

    def _resume(self) -> None:
        match self.learner.status:
            case "running":
                raise RefusedError("it is running already")
            case "finished":
                raise RefusedError("training is finished; `set num_epochs=...` to more epochs first")
            case _:
                self.learner.start()

    def _set(self, request: Request) -> str:
        """All of it at one boundary, or nothing."""
        rates = {name: value for name, value in request.args.items() if name != "num_epochs"}
        learner, done = self.learner, []
        with learner.paused():
            self._say(request)
            groups = learner.optimizer.param_groups
            for name in rates:
                _check_group(name, len(groups))
            if "num_epochs" in request.args:
                learner.num_epochs = request.args["num_epochs"]
                done.append(f"trains up to epoch {learner.num_epochs}")
            if rates:
                _set_rates(groups, rates)
                self.changed()
                done.append(f"{_rates(groups)} from {learner.position} on{_hint(learner.scheduler)}")
        return "; ".join(done)

    # The log -----------------------------------------------------------------------------------------

    def _say(self, request: Request) -> None:
        self._note(str(request))

    def _note(self, text: str) -> None:
        # The log keeps the line: a full disk must not keep anybody from `stop`. A run that ends has no log.
        with suppress(LoggerError, BusyError):
            self.learner.tools.note(f"remote control by {self.asker}: {text}")


# Pieces ----------------------------------------------------------------------------------------------


def _check_group(name: str, count: int) -> None:
    group = group_of(name)
    if group is not None and group >= count:
        have = "one parameter group, lr[0]" if count == 1 else f"{count} parameter groups, lr[0] to "
        last = "" if count == 1 else f"lr[{count - 1}]"
        raise RefusedError(f"there is no {name}: the optimizer has {have}{last}")


def _set_rates(groups: list[dict[str, Any]], rates: Mapping[str, float]) -> None:
    """First what is meant for all groups, then what is meant for one."""
    for name, rate in sorted(rates.items()):
        chosen = group_of(name)
        for number, group in enumerate(groups):
            if chosen in (None, number):
                if hasattr(group["lr"], "fill_"):  # a tensor must stay the same one (capturable)
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = float(rate)


def _rates(groups: list[dict[str, Any]]) -> str:
    rates = [f"{float(group['lr']):g}" for group in groups]
    return f"lr is {', '.join(rates)}"


def _hint(scheduler: Any) -> str:
    if scheduler is None or isinstance(scheduler, (int, float)):
        return ""
    name = getattr(scheduler, "__name__", type(scheduler).__name__)
    return f"; the schedule ({name}) may set it anew when it moves"


def _status(learner: Steering) -> Answer:
    at = learner.position
    facts: dict[str, Any] = {
        "status": learner.status,
        "epoch": at.epoch,
        "split": at.split,
        "step": at.step,
        "total": at.total,
        "iteration": at.iteration,
        "num_epochs": learner.num_epochs,
        **_measured(learner),
        "pid": os.getpid(),
    }
    words = [f"{facts['status']} at {at} ({_of(learner.num_epochs)})"]
    if facts["rate"]:
        words.append(f"{facts['rate']:.3g} steps/s")
    words += [
        f"{split} {name} {math.nan if value is None else value:.4g}"
        for split, values in facts["metrics"].items()
        for name, value in values.items()
    ]
    return Answer(True, "; ".join([*words, f"pid {facts['pid']}"]), facts)


def _of(epochs: int) -> str:
    return "of one epoch" if epochs == 1 else f"of {epochs} epochs"


def _measured(learner: Steering) -> dict[str, Any]:
    """The rate, and the values of the last step that was measured: they are a tenth of a second old."""
    record = learner.history.snapshot()
    if not record or not record[-1].blocks:
        return {"rate": None, "metrics": {}}
    block = record[-1].blocks[-1]
    values = {name: _finite(column.values[-1]) for name, column in block.columns.items()}
    moves = learner.status == "running" and block.seconds > 0
    return {"rate": block.count / block.seconds if moves else None, "metrics": {block.split: values}}


def _finite(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())

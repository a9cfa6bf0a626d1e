"""Turns a command into a call of the learner, and its result into one line."""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import BusyError, NotebookLearnerError
from ..renderer.text import one_line
from .command import Answer, Command, option_of
from .steered import Steered

PATIENCE = 5.0
"""Seconds that a command waits for a learner that has stopped but still finishes some work."""
_STANDS = ("ready", "paused", "stopped", "finished")


class CannotError(ValueError):
    """The command is not possible in the learner's present state."""


@dataclass(frozen=True, slots=True)
class Steering:
    """Carries out commands on a learner."""

    learner: Steered
    note: Callable[[str], None] | None = None
    """Writes to the run's log what is done, and who asked. A command that changes something is noted at a
    step boundary, before it is done. A question (`status`) is not noted, so it delays nothing. None: no
    notes."""
    changed: Callable[[], None] = lambda: None
    """Called while the learner stands still, if a command changed something that a step reads."""
    failed: Callable[[str, str], None] = lambda title, text: None
    """Called with an exception of the user's code: its last line, and the traceback."""

    def carry_out(self, command: Command) -> Answer:
        """Carry out the command; return after it is done or has failed."""
        try:
            return self._once_it_stands(command)
        except KeyboardInterrupt:  # the user paused it
            return Answer(True, f"paused at {self.learner.position}")
        except (NotebookLearnerError, ValueError) as refused:
            return self._not_done(command, "refused: ", _in_one_line(refused))
        except BaseException as error:  # raised by the user's code; status and log report it too
            self.failed(f"{type(error).__name__}: {error}", traceback.format_exc())
            return self._not_done(command, "", f"{type(error).__name__}: {_in_one_line(error)}")

    def _not_done(self, command: Command, how: str, text: str) -> Answer:
        if command.cmd != "status":
            self._say(f"{command} {how}{text}")
        return Answer(False, text)

    def _once_it_stands(self, command: Command) -> Answer:
        """Run a command after the learner stands. Its status says so early, while it may still save a
        checkpoint. A user who clicks in that moment expects what the page shows."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._do(command)
            except BusyError:
                if self.learner.status not in _STANDS or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _do(self, command: Command) -> Answer:
        learner, args = self.learner, command.args
        match command.cmd:
            case "status":
                return _status(learner)
            case "pause":
                return self._ask(command, learner.pause)
            case "stop":
                return self._ask(command, learner.stop)
            case "set":
                return Answer(True, self._set(command))
        self._say(str(command))
        match command.cmd:
            case "run":
                learner.start()
                learner.wait()
                return Answer(True, learner.status)
            case "resume":
                return Answer(True, self._resume())
            case "step":
                return Answer(True, str(learner.step(args["n"])))
            case "step_epoch":
                return Answer(True, str(learner.step_epoch()))
            case "rewind":
                return Answer(True, str(learner.rewind(args["n"], of="train")))
            case "rewind_to":
                return Answer(True, str(learner.rewind(to=args["step"])))
            case "go_to":
                return Answer(True, str(learner.tools.go_to(args["branch"])))
            case "save":
                return Answer(True, f"saved as {learner.save()}")
            case "restore":
                learner.restore(args["label"])
                return Answer(True, f"restored {args['label']}")
            case "breakpoint":
                return Answer(True, _switch(learner, args["name"], args["on"]))
            case "inspect":
                return Answer(True, f"inspected at {learner.inspect(rank=args['rank']).place}")
            case "verify":
                return Answer(True, str(learner.verify()))
            case other:
                raise CannotError(f"this learner cannot {other}")

    # One method per command --------------------------------------------------------------------------

    def _ask(self, command: Command, verb: Callable[[], None]) -> Answer:
        """A request to the loop. It is noted while the loop is held, and answered at the same boundary."""
        if self.note is None:
            verb()
        else:
            with self.learner.paused():
                self._say(str(command))
                verb()
            with suppress(BusyError):  # training has ended meanwhile
                verb()  # again: inside the block it could not wait until the learner stands
        return Answer(True, f"{self.learner.status} at {self.learner.position}")

    def _resume(self) -> str:
        match self.learner.status:
            case "running":
                raise CannotError("it is running already")
            case "finished":
                raise CannotError("training is finished; `set num_epochs=...` to more epochs first")
        self.learner.start()
        return f"goes on from {self.learner.position}"

    def _set(self, command: Command) -> str:
        """Make all changes at one boundary, or none."""
        options = {name: value for name, value in command.args.items() if name != "num_epochs"}
        learner, done = self.learner, []
        with learner.paused():
            self._say(str(command))
            groups = _groups(learner.optimizer) if options else []
            for name in options:
                _check_group(name, groups)
            if "num_epochs" in command.args:
                learner.num_epochs = command.args["num_epochs"]
                done.append(f"trains up to epoch {learner.num_epochs}")
            if options:
                _set_options(groups, options)
                self.changed()
                learner._edited(", ".join(f"{name} = {value:g}" for name, value in options.items()))
                now = " and ".join(_said(groups, key) for key in dict.fromkeys(map(_key_of, options)))
                hint = _hint(learner.scheduler) if "lr" in map(_key_of, options) else ""
                done.append(f"{now} from {learner.position} on{hint}")
        return "; ".join(done)

    def _say(self, text: str) -> None:
        if self.note is not None:
            self.note(text)


# Pieces ----------------------------------------------------------------------------------------------


def _switch(learner: Steered, name: str, on: bool) -> str:
    for each in learner.breakpoints:
        if each.name == name:
            each.on = on
            return f"{one_line(name)} is {'on' if on else 'off'}"
    raise CannotError(f"there is no breakpoint {name!r} any more")


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    """The parameter groups of the optimizer, or of all by their order."""
    each = optimizer.values() if isinstance(optimizer, Mapping) else (optimizer,)
    return [group for one in each for group in one.param_groups]


def _key_of(name: str) -> str:
    return option_of(name)[0]


def _check_group(name: str, groups: list[dict[str, Any]]) -> None:
    (key, group), count = option_of(name), len(groups)
    if group is not None and group >= count:
        have = "one parameter group, lr[0]" if count == 1 else f"{count} parameter groups, lr[0] to "
        last = "" if count == 1 else f"lr[{count - 1}]"
        raise CannotError(f"there is no {name}: the optimizer has {have}{last}")
    for each in groups if group is None else [groups[group]]:
        if key not in each and not (key == "momentum" and "betas" in each):
            raise CannotError(f"the optimizer has no {key}")


def _set_options(groups: list[dict[str, Any]], options: Mapping[str, float]) -> None:
    """Set an option of all groups first, then those of single groups."""
    for name, value in sorted(options.items()):
        key, chosen = option_of(name)
        for number, group in enumerate(groups):
            if chosen not in (None, number):
                continue
            if key == "momentum" and "betas" in group:
                group["betas"] = (float(value), *group["betas"][1:])
            elif hasattr(group[key], "fill_"):  # a tensor must stay the same one (capturable)
                group[key].fill_(value)
            else:
                group[key] = float(value)


def _said(groups: list[dict[str, Any]], key: str) -> str:
    values = [group["betas"][0] if key == "momentum" and "betas" in group else group[key] for group in groups]
    return f"{key} is {', '.join(f'{float(value):g}' for value in values)}"


def _hint(scheduler: Any) -> str:
    if scheduler is None or isinstance(scheduler, (int, float)):
        return ""
    name = getattr(scheduler, "__name__", type(scheduler).__name__)
    return f"; the schedule ({name}) may set it anew when it moves"


def _status(learner: Steered) -> Answer:
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


def _measured(learner: Steered) -> dict[str, Any]:
    """The rate, and the values of the last step that was measured: they are a tenth of a second old."""
    record = learner.history.snapshot()
    if not record or not record[-1].blocks:
        return {"rate": None, "metrics": {}}
    block = record[-1].blocks[-1]
    values = {name: _finite(column.values[-1]) for name, column in block.columns.items()}
    moves = learner.status == "running" and block.seconds > 0
    return {"rate": block.count / block.seconds if moves else None, "metrics": {block.split: values}}


def _finite(value: Any) -> float | None:
    """The value as a float, or None if it is not finite: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())

"""Hands the run to a process of its own, and takes it back; lets another process take a few of its steps.

This process keeps the run's directory until the new process has made the learner again. The directory is
locked at every moment: the new process gets the descriptor that the directory is locked with, and this
process closes its own when the new process trains. If something fails in between, the learner here keeps its
directory, and stands where it stood.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint.formats import load, save
from ..checkpoint.info import label_of
from ..errors import (
    CheckpointError,
    ConfigurationError,
    DetachError,
    NotebookLearnerError,
    Paused,
    StateError,
    StoreError,
)
from ..event import Event, Notice, Rewound
from ..event.position import Position
from ..ranks.detached_process import CANNOT, Process, packed, surroundings
from ..remote.detached import LOG, Detached, forget_in, noted_in
from ..run.compared import Difference
from ..run.replica import Replica
from ..run.step_reports import HandedOver, RunTakenBack, why_over
from ..state.state import State, written
from ..trial.excursion import excursion
from ..trial.footprint import Footprint, first_difference
from ..trial.verify import Verification, cause_of, footprints, verify

STEP = 10.0
"""Seconds to wait for the first step, in which most failures happen. The step may also take an hour."""


@dataclass(frozen=True, slots=True)
class Away:
    """The process that a learner's run was handed over to."""

    process: Process
    noted: Detached


def hand_over(learner: Any, train: Any, valid: Any, epochs: int | None) -> HandedOver:
    """See `Learner.detach`."""
    _require_possible(learner)
    ran = learner._driver.busy
    if not learner._driver.inside:  # inside a step the verb raises below
        learner.pause()
    try:
        report: HandedOver = learner._drive(lambda: _handed_over(learner, train, valid, epochs))
        return report
    except KeyboardInterrupt:
        away = learner._away
        told = "" if away is None else f"it came too late: the run goes on in process {away.noted.pid}; "
        raise Paused(
            str(learner.position), told=told and f"{told}learner.take_back() takes it back"
        ) from None
    except Exception:
        if ran and learner.status == "paused" and learner._away is None:  # as it was: in the background
            learner.start()
        raise


def take_back(learner: Any) -> RunTakenBack:
    """See `Learner.take_back`; no other thread drives the learner meanwhile."""
    away = learner._away
    if away is None:
        raise StateError("there is nothing to take back: this learner's run goes on here; fit() trains on")
    directory = learner._premises.directory
    was_alive = away.noted.is_alive() and not away.noted.has_ended(directory)
    away.noted.end(directory, _unless_interrupted(learner, away.noted))
    found = noted_in(directory)
    ended = found if found is not None and found.pid == away.noted.pid and found.ended else None

    def stand() -> Sequence[Event]:
        _stand_at_the_newest(learner)
        loop = learner._replica.loop
        if ended is not None and ended.num_epochs >= loop.epoch - (loop.done == 0):
            loop.num_epochs = ended.num_epochs
        return _first_of(learner)

    learner._premises.take_back(learner, stand)
    learner._away = None
    learner._settle()
    report = RunTakenBack(away.noted.pid, learner.position, _what_became(away, ended, was_alive))
    learner._emit(Notice(str(report), "warning" if report.told else "info"))
    return report


# Handing over ----------------------------------------------------------------------------------------


def _require_possible(learner: Any) -> None:
    learner._premises.look_in()  # before a process is started for nothing
    learner._premises.look_away()
    wrong = []
    if os.name != "posix":
        wrong.append("detach() needs a system with sessions of processes, such as Linux or macOS")
    if not importlib.util.find_spec("cloudpickle"):
        wrong.append("detach() needs one more package: pip install 'notebook_learner[devices]'")
    recorder = learner._supplies.origin.settings.recorder
    if recorder is not None and not recorder.exact:
        wrong.append(
            f"{type(recorder).__name__} saves in half precision, so no other process can go on exactly from "
            "what it saves; with_file_checkpointer(Hdf5Recorder()) keeps every bit"
        )
    if wrong:
        learner._rest()
        raise ConfigurationError(wrong, CANNOT)


def _handed_over(learner: Any, train: Any, valid: Any, epochs: int | None) -> HandedOver:
    loop = learner._replica.loop
    before = loop.num_epochs
    try:
        _prepare(learner, train, valid, epochs)
        process = Process(surroundings(), packed(learner), lambda: loop.control.interrupted)
        try:
            process.hear("made")
            label = _saved(learner)
            noted = process.noted()
            descriptor = _lend(learner, noted)
        except BaseException:
            process.kill()
            raise
        try:
            _begin(learner, process, label, descriptor)
        except BaseException:
            process.kill()
            _come_back(learner)
            raise
    except BaseException:
        loop.num_epochs = before
        raise
    process.let_go()
    learner._premises.lent()
    learner._away = Away(process, noted)
    _leave(learner, noted)
    return HandedOver(noted.pid, learner.position, os.path.join(learner._premises.directory, LOG))


def _prepare(learner: Any, train: Any, valid: Any, epochs: int | None) -> None:
    """Prepare as for a `fit`."""
    if epochs is not None and epochs < 1:
        raise ValueError(f"detach(epochs={epochs}): train at least one epoch more")
    for split, loader in (("train", train), ("valid", valid)):
        if loader is not None:
            learner._supplies.use(learner, split, loader)
    learner._supplies.require()
    if epochs is not None:
        learner._replica.loop.train_more(epochs)
    loop = learner._replica.loop
    if loop.finished:
        over = why_over(loop.epoch, loop.num_epochs, loop.ended)
        raise StateError(
            f"training is finished: {over}; fit(epochs=n) trains n more, and so does detach(epochs=n)"
        )


def _saved(learner: Any) -> str:
    """Save everything that a step can change; return the checkpoint's label. It saves again if this step was
    saved before, as the user may have changed something since."""
    learner._enter(saves=True)
    learner._announce()
    replica = learner._replica
    at = replica.loop.position
    replica.saving.take_auto(replica.capture())
    replica.saving.wait()
    return str(label_of(at.epoch, at.split, at.step))


def _lend(learner: Any, noted: Detached) -> int:
    """Lend the directory; return the descriptor that it is locked with, for the process."""
    directory = learner._premises.directory
    noted.note_in(directory)
    descriptor: int = learner._premises.lend(
        f"this run goes on in process {noted.pid}, to which it was handed over: learner.take_back() has it "
        f"stop at its next step and goes on from there; `notebook-learner ctl {directory} status` tells how "
        f"it stands, and Artifacts({str(directory)!r}) shows it"
    )
    if learner._replica.ranks is not None:
        from ..ranks.rank_processes import release_spare  # loaded long ago, if there are ranks

        learner._replica.ranks.shut()
        release_spare()
    return descriptor


def _begin(learner: Any, process: Process, label: str, descriptor: int) -> None:
    info = os.stat(learner._premises.directory)
    process.give(descriptor)
    process.tell(label=label, identity=[info.st_dev, info.st_ino], kernel=os.getpid())
    if process.hear("trains", "stepped") == "trains":  # a quick run may be over by now
        process.hear("stepped", seconds=STEP)


def _leave(learner: Any, noted: Detached) -> None:
    """Release here all that the process needs."""
    for each in learner._replica.loop.passes.values():
        each.cursor.close()
    with suppress(NotebookLearnerError):  # it trains there; this must not become an error
        learner._set_status("paused", f"handed over: goes on in process {noted.pid}")


def _come_back(learner: Any) -> None:
    """Take the directory again after the process did not begin, and put its files in order."""
    forget_in(learner._premises.directory)
    learner._premises.take_back(learner, lambda: _first_of(learner))
    replica = learner._replica
    try:  # what the process saved or measured is not part of this run
        replica.saving.take_auto(replica.capture())
        replica.saving.wait()
    except CheckpointError as error:
        learner._emit(Notice(f"this place is not on the disk: {error}", "warning"))


# Taking back -----------------------------------------------------------------------------------------


def _unless_interrupted(learner: Any, noted: Detached) -> Callable[[], None]:
    control = learner._replica.loop.control

    def meanwhile() -> None:
        if control.interrupted:
            told = (
                f"not waiting any more for process {noted.pid}, which stops at its next step all the same; "
            )
            raise Paused(str(learner.position), told=f"{told}call learner.take_back() again")

    return meanwhile


def _stand_at_the_newest(learner: Any) -> None:
    """Go to the last checkpoint of the process. By its label, as "latest" may ask the user's own
    checkpointer."""
    replica = learner._replica
    whole = [info for info in replica.saving.checkpoints() if info.exact and not info.damage]
    if not whole:
        raise StoreError(
            f"there is no whole checkpoint in {str(learner._premises.directory)!r}, where the process kept "
            "them; learner.fork('another directory') goes on from where this learner stood"
        )
    replica.restore_checkpoint(whole[-1].label)


def _first_of(learner: Any) -> Sequence[Event]:
    """The events that bring new writers to where the run stands; their files already hold that."""
    record, at = learner.history.snapshot(), learner._replica.loop.position
    opened = replace(learner._opened, num_epochs=learner._replica.loop.num_epochs)
    return opened, Rewound(at.epoch, at.split, at.step, record, len(record), 0, "taken back")


def _what_became(away: Away, ended: Detached | None, was_alive: bool) -> str:
    if ended is None:
        return f"which {away.process.how_it_ended()}, so this is its last checkpoint"
    if ended.ended == "failed":
        return f"which had failed ({ended.error})"
    return "" if was_alive else f"which had ended ({ended.ended})"


_STATE, _FOUND = "state.h5", "found.h5"


def verified(learner: Any, steps: int) -> Verification:
    """See `Learner.verify`; no other thread drives the learner meanwhile."""
    replica = learner._replica
    start = learner.position
    first, here = verify(replica, steps)
    if here is not None:
        return Verification(len(first), start, here, None)
    if why := _why_not(replica):
        return Verification(len(first), start, None, None, why)
    try:
        there = _taken_there(learner, len(first))
    except (ConfigurationError, DetachError) as refused:
        why = str(refused).strip().splitlines()[-1].strip(" -")
        return Verification(len(first), start, None, None, f"a new process could not take them ({why})")
    found = first_difference(first, there)
    if found is None:
        return Verification(len(first), start, None, None)
    number, name = found
    place = first[min(number, len(first) - 1)].place
    return Verification(len(first), start, None, Difference(place, name, cause_of(replica, name)))


def _why_not(replica: Replica) -> str:
    if replica.ranks is not None:
        return "with several devices no new process is tried"
    if os.name != "posix":
        return "a new process needs a system with sessions of processes, such as Linux or macOS"
    if not importlib.util.find_spec("cloudpickle"):
        return "a new process needs one more package: pip install 'notebook_learner[devices]'"
    return ""


def _taken_there(learner: Any, steps: int) -> list[Footprint]:
    """Take the steps in a new process, from a file with the present state."""
    replica = learner._replica
    with tempfile.TemporaryDirectory(prefix="notebook_learner-verify-") as folder:
        state = replica.capture()
        at = state.position
        parts = {name: written(part) for name, part in state.parts.items()}
        save({"place": list(astuple(at)), "parts": parts}, Path(folder, _STATE))
        process = Process(surroundings(), packed(learner), lambda: replica.loop.control.interrupted)
        try:
            process.hear("made")
            process.tell(verify=folder, steps=steps)
            process.hear("stepped")
        finally:
            process.kill()
        return [Footprint(place, found) for place, found in load(Path(folder, _FOUND))]


def take_steps_for(learner: Any, folder: str, steps: int) -> None:
    """In the new process: go to the state, take the steps, and write down what they left."""
    replica = learner._replica
    held = load(Path(folder, _STATE))
    replica.put_back(State(Position(*held["place"]), held["parts"]))
    replica.carried.begin()
    learner._driver.belongs_to_this_thread()  # steps may call `learner.log`
    with excursion(replica, what="verify()") as trip:
        found = footprints(replica, trip, steps)
    save([[place, dict(prints)] for place, prints in found], Path(folder, _FOUND))

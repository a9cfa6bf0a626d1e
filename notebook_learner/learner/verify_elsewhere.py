"""The work of `learner.verify()`: steps taken again here, and from a checkpoint in a new process."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import astuple
from pathlib import Path
from typing import Any

from ..checkpoint.formats import load, save
from ..errors import ConfigurationError, DetachError
from ..event.position import Position
from ..ranks.detached_process import Process, packed, surroundings
from ..run.compared import Difference
from ..run.replica import Replica
from ..state.state import State, written
from ..trial.excursion import excursion
from ..trial.verify import Footprint, Verification, cause_of, first_difference, footprints, verify

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
    with excursion(replica, what="verify()") as trip:
        found = footprints(replica, trip, steps)
    save([[place, dict(prints)] for place, prints in found], Path(folder, _FOUND))

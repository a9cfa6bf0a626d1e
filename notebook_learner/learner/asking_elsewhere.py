"""Asks stretches of the past side by side: each begins at a checkpoint, in a process of its own, and the last
one is asked in this process."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import DetachError, StateError
from ..event.position import after_training_step
from ..ranks.detached_process import Process, packed, surroundings
from ..run.replica import Replica
from ..trial.ask import Stretch

_PAST, _ANSWER = "past.pickle", "answer-{}.pickle"


Ask = Callable[[Any, Stretch], Any]
"""Asks a learner over a stretch."""


def stretches(replica: Replica, whole: Stretch, count: int, by_epochs: bool) -> list[Stretch]:
    """Divide steps at checkpoints, into at most so many stretches of about one length."""
    before = whole.first - 1
    inside = {each.iteration for each in replica.saving.on_the_way() if before < each.iteration < whole.last}
    if by_epochs:
        inside = {each for each in inside if after_training_step(replica.past, each).step == 0}
    wanted = [before + (whole.last - before) * part // count for part in range(1, count)]
    cuts = {min(inside, key=lambda each: abs(each - place)) for place in wanted} if inside else set()
    return [Stretch(one + 1, last) for one, last in pairwise([before, *sorted(cuts), whole.last])]


def why_not(learner: Any) -> str:
    """Why the past cannot be asked in other processes; empty if it can."""
    replica = learner._replica
    if replica.ranks is not None:
        return "with several devices the ranks are asked"
    if learner._supplies.recipe.has_other_code:
        return "its code was changed by hand, and only this process has that of then"
    if _accelerated(replica):
        return "each process would need memory of its own on the device"
    if os.name != "posix" or not importlib.util.find_spec("cloudpickle"):
        return "another process needs Linux or macOS, and pip install 'notebook_learner[devices]'"
    return ""


def _accelerated(replica: Replica) -> bool:
    return any(not each.is_cpu for each in replica.loop.update.model.parameters())


def ask_side_by_side(learner: Any, ask: Ask, parts: Sequence[Stretch]) -> list[Any]:
    """Ask each stretch, and return the answers in their order.

    Raises:
        ConfigurationError: a part of the learner cannot be sent to another process.
        StateError: what is asked cannot be, or a process failed.
    """
    from ..ranks.shipping import names_of, pack, unpack  # their requirements may be missing: see why_not

    replica = learner._replica
    replica.saving.close()  # the processes read the checkpoints
    names, meant = names_of(replica.loop.update, learner)
    store: Any = replica.saving.store
    past = ask, replica.past, store.lineage, store.run_id, learner._supplies.recipe.text(wait=True)
    with tempfile.TemporaryDirectory(prefix="notebook_learner-ask-") as folder, ExitStack() as stack:
        try:
            _write(folder, _PAST, pack(past, names))
        except Exception as refused:
            raise StateError(f"ask(processes=...): what is asked cannot be sent: {refused}") from refused
        ticket, around = packed(learner), surroundings()
        processes = []
        for number, part in enumerate(parts[:-1]):
            process = Process(around, ticket, lambda: replica.loop.control.interrupted)
            stack.callback(process.kill)
            process.tell(ask=folder, number=number, stretch=part)
            processes.append(process)
        own = ask(learner, parts[-1])
        for process in processes:
            _wait_for(process)
        files = [Path(folder, _ANSWER.format(number)) for number in range(len(processes))]
        return [*(unpack(each.read_bytes(), meant) for each in files), own]


def _wait_for(process: Process) -> None:
    try:
        process.hear("stepped")
    except DetachError as failed:
        told = str(failed).partition("The traceback there:\n")[2] or str(failed)
        raise StateError(f"ask(processes=...): a process that took steps again failed:\n{told}") from failed


def answer_for(learner: Any, folder: str, number: int, stretch: Sequence[int]) -> None:
    """In another process: ask a stretch, and write down the answer."""
    from ..ranks.shipping import names_of, pack, unpack

    replica = learner._replica
    names, meant = names_of(replica.loop.update, learner)
    ask, record, lineage, run_id, recipe = unpack(Path(folder, _PAST).read_bytes(), meant)
    store: Any = replica.saving.store
    store.lineage, store.run_id = lineage, run_id
    learner._supplies.recipe.follow(recipe)
    replica.history.restore(record)
    replica.carried.begin()
    learner._driver.belongs_to_this_thread()  # steps may call `learner.log`
    _write(folder, _ANSWER.format(number), pack(ask(learner, Stretch(*stretch)), names))


def _write(folder: str, name: str, data: bytes) -> None:
    Path(folder, name).write_bytes(data)

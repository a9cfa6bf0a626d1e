"""Trains, is killed, looks at what is left, trains on: as often as asked, a line of JSON for each trial.

A process of its own that has imported everything and then forks for each life: importing torch takes longer
than the training.

    python kill_server.py <folder> <kills> <seed>
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from crash_support import (
    Calls,
    End,
    Ledger,
    Training,
    done,
    end_of,
    half_written,
    standing,
    train_and_save,
    wrong_at_the_end,
    wrong_with_checkpoints,
)

from notebook_learner.checkpoint.folder import CheckpointFolder

TRAINING = Training()


@dataclass(frozen=True)
class AtCall:
    """Die at the nth call of a function of `store/files.py`: before it, amid what it writes, or after it."""

    name: str
    nth: int
    when: str


@dataclass
class Trial:
    """One directory, from its first life to its end."""

    deaths: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    announced: int = 0


def forked(live: Callable[[], Any], kill_after: float | None = None) -> tuple[list[list[Any]], int]:
    """Live in a process of its own; what it wrote to its pipe, and its exit status."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reads)
        os.dup2(writes, 1)
        code = 1
        try:
            live()
            code = 0
        except BaseException:
            say("error", traceback.format_exc())
        os._exit(code)
    os.close(writes)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is still this child's
    with os.fdopen(reads, "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    return lines, os.waitpid(pid, 0)[1]


def say(verb: str, what: Any) -> None:
    """One line into the pipe, in one call: a death leaves it whole or not there."""
    os.write(1, json.dumps([verb, what]).encode() + b"\n")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def life(directory: Path, at: AtCall | None) -> None:
    """Train, telling what is announced, until the end or the given death."""
    calls = Counter[str]()

    def hand(number: int, name: str, real: Any, given: Any, named: Any) -> Any:
        calls[name] += 1
        if at is None or (name, calls[name]) != (at.name, at.nth):
            return real(*given, **named)
        say("died at", name)
        if at.when == "amid":
            half_written(name, real, given)
        elif at.when == "after":
            real(*given, **named)
        die()

    if not any(not info.damage for info in CheckpointFolder(directory / "checkpoint").list()):
        # This life begins anew: the learner moves the directory of the last one aside.
        for info in CheckpointFolder(directory / "start").list():
            say("let go", f"start/{info.label}")
    with Ledger(say), Calls(hand):
        learner = TRAINING.resumed(directory)
        if learner.position.step or learner.position.epoch > 1:
            learner.fit()
        else:
            train_and_save(learner)


def inspect(directory: Path, needed: list[str]) -> None:
    """What a reader finds before anything is repaired."""
    from notebook_learner.artifacts import Artifacts
    from notebook_learner.artifacts.run_status import is_run

    for problem in wrong_with_checkpoints(directory, needed):
        say("wrong", problem)
    if is_run(directory):  # killed before its first file, it leaves a directory with a socket at most
        Artifacts(directory).verify()


def survive(directory: Path, straight: Path) -> None:
    """The last life: nothing happens to it."""
    end: End = pickle.loads(straight.read_bytes())
    learner = TRAINING.resumed(directory)
    learner.fit()
    for problem in wrong_at_the_end(learner, directory, end):
        say("wrong", problem)


def try_to_kill(directory: Path, deaths: list[tuple[float | None, AtCall | None]], straight: Path) -> Trial:
    trial, told = Trial(), []
    for seconds, at in deaths:
        lines, status = forked(partial(life, directory, at), seconds)
        told += [(verb, label) for verb, label in lines if verb in ("saved", "let go")]
        trial.wrong += [text for verb, text in lines if verb == "error"]
        if not os.WIFSIGNALED(status):
            break  # it came to its end first (a call that this life did not make, or too late a time)
        place = [name for verb, name in lines if verb == "died at"]
        trial.deaths.append(f"{at.when} {place[0]}" if at is not None and place else "at some time")
        lines, status = forked(partial(inspect, directory, standing(told)))
        trial.wrong += [text for _, text in lines]
    lines, status = forked(partial(survive, directory, straight))
    trial.wrong += [text for verb, text in lines if verb in ("wrong", "error")]
    trial.announced = sum(verb == "saved" for verb, _ in told)
    return trial


def main() -> None:
    root, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    straight = root / "straight.pickle"
    # Here, and not in a fork, so that what is imported late is imported once.
    straight.write_bytes(pickle.dumps(TRAINING.straight(root / "straight")))
    began = time.monotonic()
    with Calls(done) as calls:
        learner = TRAINING.learner(root / "counted")
        train_and_save(learner)
    length = time.monotonic() - began
    wrong_at_the_end(learner, root / "counted", end_of(learner, root / "counted"))

    planned = spread(calls.names, kills // 2, chance)
    had = timed = 0
    for number in range(10 * kills):
        if had >= kills and not planned:
            break
        if planned and timed >= had - timed:
            # In the first life, which makes all the calls that were counted; a second one makes fewer.
            first = planned.pop()
            deaths = [(None, first), (None, chance.choice([first, *planned]))][: chance.choice([1, 1, 2])]
        else:
            deaths = [(chance.uniform(0.0, 1.1 * length), None) for _ in range(chance.choice([1, 1, 2, 3]))]
        directory = root / f"trial-{number}" / "runs" / "digits"
        trial = try_to_kill(directory, deaths, straight)
        had += len(trial.deaths)
        timed += sum(death == "at some time" for death in trial.deaths)
        print(json.dumps(vars(trial)), flush=True)
        shutil.rmtree(root / f"trial-{number}", ignore_errors=True)


def spread(names: list[str], count: int, chance: random.Random) -> list[AtCall]:
    """Deaths all over a run, and at each function at least once."""
    once = [
        chance.choice([i for i, known in enumerate(names) if known == name]) for name in sorted(set(names))
    ]
    rest = max(0, count - len(once))
    numbers = [int((k + chance.random()) * len(names) / rest) for k in range(rest)]
    ways = ("before", "amid", "after")
    return [
        AtCall(names[i], names[: i + 1].count(names[i]), ways[k % 3]) for k, i in enumerate(numbers + once)
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

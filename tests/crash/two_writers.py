"""Two processes on one directory, one round after the other: `python -m tests.crash.two_writers 200`.

Each round draws how the first one trains, how the second one begins there, and what has become of the socket;
afterwards every save that either of them announced is looked for, with its weights.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from notebook_learner import Artifacts

sys.path[:0] = [str(Path(__file__).parents[1] / "learner")]

TRAINS = """
import hashlib
def digest(weights):
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()
def trains(learner, seconds, announced, gate=lambda: None):
    '''Save and announce, until the time is over or the learner says that it cannot; its words then.'''
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            learner.step(2)
            label = learner.save()
            announced.append((label, digest(learner.model.state_dict())))
            if learner.status == "finished":
                break
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
def begins(how, run, control, seed):
    builder = builder_in(run, epochs=400, files=True).seed(seed)
    builder.remote_control(control)
    if how == "overwrite": builder.overwrite()
    if how == "resume": builder.resume()
    if how == "checkpoint": builder.checkpoint("latest")
    return built(builder, seed=seed)
announced = []
"""

FIRST = ("steps", "fit in the background", "detached", "finished", "killed", "in a forked child")
SECOND = ("overwrite", "resume", "checkpoint", "a new run", "detach")
SOCKET = ("there", "removed", "off")
PLACE = ("its own path", "a link", "a bind mount")


def kernel_of(notebook: str) -> Any:
    """As other tests have them; from this folder its module is found late."""
    from two_kernels import Kernel

    return Kernel(notebook)


class Round:
    """What was drawn, and what came of it."""

    def __init__(self, root: Path, draw: random.Random, mounts: bool) -> None:
        self.first, self.second = draw.choice(FIRST), draw.choice(SECOND)
        self.socket, self.place = draw.choice(SOCKET), draw.choice(PLACE if mounts else PLACE[:2])
        self.wait, self.seed = draw.random() * 0.3, draw.randrange(1 << 30)
        self.run, self.other = root / "digits", root / "elsewhere"
        self.announced: list[tuple[str, str, str]] = []
        """Who, the label, and the digest of the weights."""
        self.said: list[str] = []

    def __str__(self) -> str:
        return f"first {self.first}, second {self.second}, socket {self.socket}, {self.place}"

    def play(self) -> None:
        """Let both of them at it."""
        with kernel_of("/home/ada/first.ipynb") as first, kernel_of("/home/ada/second.ipynb") as second:
            for kernel in (first, second):
                kernel(TRAINS, run=self.run)
            self._begin(first)
            if self.socket == "removed":
                (self.run / "control.sock").unlink(missing_ok=True)
            if self.place == "a link":
                self.other.symlink_to(self.run)
            elif self.place == "a bind mount":
                self.other.mkdir()
                subprocess.run(["mount", "--bind", str(self.run), str(self.other)], check=True)
            time.sleep(self.wait)
            try:
                self._second(first, second)
            finally:
                if os.path.ismount(self.other):
                    subprocess.run(["umount", "-l", str(self.other)], check=True)

    def _begin(self, first: Any) -> None:
        first(
            "learner = begins('a new run', run, control, 1)\nlearner.step(3)\n"
            "announced.append((learner.save(), digest(learner.model.state_dict())))",
            control=self.socket != "off",
        )
        match self.first:
            case "steps" | "in a forked child":
                first.begin("_ = trains(learner, 1.5, announced)")
            case "fit in the background":
                first("learner.start()")
                first.begin(
                    "time.sleep(0.8)\nwith learner.paused():\n"
                    "    announced.append((learner.save(), digest(learner.model.state_dict())))\n"
                    "learner.pause()"
                )
            case "detached":
                first("_ = learner.detach(epochs=400).pid")
            case "finished":
                first("_ = trains(learner, 0.3, announced)\nlearner.stop()")
            case "killed":
                self._take_from(first, "first")
                first.begin("trains(learner, 60, [])")
                time.sleep(self.wait)
                first.kill()

    def _second(self, first: Any, second: Any) -> None:
        which = first if self.first == "in a forked child" else second
        code = """
def second():
    announced = []
    try:
        learner = begins("a new run" if how == "detach" else how, where, control, 2)
        if how == "detach":
            learner.detach()
            learner.take_back()
            announced.append((learner.save(), digest(learner.model.state_dict())))
    except Exception as error:
        return f"{type(error).__name__}: {error}", announced
    return trains(learner, 0.6, announced), announced
"""
        values: dict[str, Any] = {
            "how": self.second,
            "where": self.run if self.place == "its own path" else self.other,
            "control": self.socket != "off",
        }
        if which is first:
            first.end()
            code += """
reads, writes = os.pipe()
child = os.fork()
if not child:
    os.write(writes, repr(second()).encode())
    os._exit(0)
os.close(writes)
data = b""
while more := os.read(reads, 1 << 16):
    data += more
os.waitpid(child, 0)
_ = eval(data)
trains(learner, 0.3, globals()["announced"])
"""
        else:
            code += "_ = second()\n"
        error, announced = which(code, **values)
        self.said.append(error)
        self.announced += [("second", *each) for each in announced]
        if self.first not in ("killed", "finished", "detached", "in a forked child"):
            self.said.append(first.end() or "")
        if self.first == "finished":
            self.said.append(first("_ = trains(learner, 0.3, announced)"))
        if self.first == "detached":
            self.said.append(first("_ = told(learner.take_back)"))
        if self.first != "killed":
            self._take_from(first, "first")

    def _take_from(self, kernel: Any, who: str) -> None:
        self.announced += [(who, *each) for each in kernel("_ = announced")]

    def lost(self) -> list[str]:
        """Every announced save that cannot be had, by who announced it. One that was told to be deleted,
        by `.overwrite()` of a process that was let in, is none."""
        places = [path for path in sorted(self.run.parent.iterdir()) if path.name.startswith("digits")]
        found: dict[str, set[str]] = {}
        for place in places:
            run = Artifacts(place)
            for info in run.checkpoints:
                if not info.damage:
                    found.setdefault(info.label, set()).add(digest(run.state_dict(info.label)))
        let_in = self.second == "overwrite" and any(who == "second" for who, _, _ in self.announced)
        return [
            f"{who}: {label}"
            for who, label, weights in self.announced
            if weights not in found.get(label, ()) and not (who == "first" and let_in)
        ]

    def minds(self, problem: str) -> bool:
        """Whether it is more than the part of a save that a kill leaves."""
        return self.first != "killed" or ".tmp belongs to no checkpoint" not in problem


def digest(weights: Any) -> str:
    found = hashlib.sha256()
    for name, value in sorted(weights.items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


def play(
    rounds: int, seed: int, mounts: bool, tell: Any = lambda text: None
) -> tuple[list[str], Counter[str]]:
    """Play so many rounds; what is wrong, and what there was."""
    draw, wrong, seen = random.Random(seed), [], Counter[str]()
    for number in range(rounds):
        root = Path(tempfile.mkdtemp())
        here = Round(root, draw, mounts)
        try:
            here.play()
            # A live run is left alone: no other process may overwrite it.
            living = here.first in ("steps", "fit in the background", "detached", "in a forked child")
            let_in = any(who == "second" for who, _, _ in here.announced)
            if living and let_in and "BusyError" not in here.said[0]:
                wrong.append(f"round {number} ({here}): the second was let in: {here.said}")
            wrong += [f"round {number} ({here}): lost {each}" for each in here.lost()]
            for place in here.run.parent.glob("digits*"):
                problems = [each for each in Artifacts(place).verify().problems if here.minds(each)]
                if problems:
                    wrong.append(f"round {number} ({here}): {place.name}: {problems}")
        except BaseException as error:
            wrong.append(f"round {number} ({here}): {type(error).__name__}: {error}")
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            shutil.rmtree(root, ignore_errors=True)
        seen["rounds"] += 1
        seen["announced"] += len(here.announced)
        seen["refused"] += any("BusyError" in text for text in here.said)
        seen["let in"] += any(who == "second" for who, _, _ in here.announced)
        tell(f"{number}: {here}: {[text[:70] for text in here.said]}, {len(here.announced)} announced")
    return wrong, seen


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    wrong, seen = play(rounds, seed, os.geteuid() == 0, lambda text: print(text, flush=True))
    print(dict(seen), "wrong:", *(wrong or ["nothing"]), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

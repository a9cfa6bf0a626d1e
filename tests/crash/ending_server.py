"""Trains in a process that it tells to end, as often as it is asked: scene, directory and signal in,
a line of JSON out. A process of its own that has imported everything and then forks for each, as
`kill_server.py` does.

    python ending_server.py <folder>
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import pty
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from crash_support import Training, wrong_at_the_end
from exactness import BATCH, Noisy
from torch.utils.data import DataLoader

from notebook_learner import Artifacts, Learner, LearnerBuilder
from notebook_learner.checkpoint import Hdf5Recorder
from notebook_learner.store import process_end

TRAINING = Training()
SOON = 60.0
AT = 12
"""The call of the model in which the signal comes: in the second epoch's training."""
Scene = Callable[[Path], object]
Configure = Callable[[LearnerBuilder], object]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    SCENES[function.__name__] = function
    return function


def say(word: str) -> None:
    os.write(TOLD, f"{word}\n".encode())


TOLD = 1


def told(seconds: float = SOON) -> None:
    """Ask for the signal, and wait until it has come."""
    say("signal")
    until = time.monotonic() + seconds
    while not process_end.why() and time.monotonic() < until:
        time.sleep(0.001)


def told_and_their_end() -> None:
    """Outlast the loader's workers: torch raises at their end, wherever the main thread is."""
    workers = multiprocessing.active_children()
    told()
    if "SIGTERM" in process_end.why():  # they block the other one
        for worker in workers:
            worker.join(SOON)
            assert not worker.is_alive()
    assert workers


def learner_at(
    directory: Path,
    at: int,
    strike: Callable[[], object] = told,
    configure: Configure = lambda builder: builder,
) -> Learner:
    """A learner in whose nth forward something happens."""
    learner = TRAINING.learner(directory, configure=configure)
    left = [at]

    def hook(module: Any, given: Any) -> None:
        left[0] -= 1
        if not left[0]:
            strike()

    learner.model.register_forward_pre_hook(hook)
    return learner


@scene
def fit(directory: Path) -> None:
    learner_at(directory, AT).fit()


@scene
def logged(directory: Path) -> None:
    learner_at(directory, AT, configure=lambda builder: builder.with_application_logger(True)).fit()


@scene
def validation(directory: Path) -> None:
    learner = learner_at(directory, 9)
    learner.fit()


@scene
def background(directory: Path) -> None:
    learner = learner_at(directory, AT)
    learner.start()
    time.sleep(SOON)
    say("went on")


@scene
def waited(directory: Path) -> None:
    learner = learner_at(directory, AT)
    learner.start()
    learner.wait()
    say("went on")


@scene
def background_validation(directory: Path) -> None:
    learner = learner_at(directory, 9)
    learner.start()
    time.sleep(SOON)


@scene
def two_at_once(directory: Path) -> None:
    """One in the background, whose step outlasts the pause of the one in this thread."""
    reached = threading.Event()

    def slow() -> None:
        reached.set()
        until = time.monotonic() + SOON
        while not process_end.why() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.3)

    other = learner_at(directory.with_name("other"), 3, slow)
    other.start()
    reached.wait(SOON)
    try:
        learner_at(directory, AT).fit()
    finally:
        say("went on")


class Slow(Hdf5Recorder):
    """Whose second half of a checkpoint comes when the signal has."""

    asks = False

    def encode(self, value: Any, /, what: str = "state") -> Any:
        if Slow.asks:
            Slow.asks = False
            told()
        return super().encode(value, what)


def saving(directory: Path) -> Learner:
    learner = TRAINING.learner(directory)
    learner._replica.saving.store.keeper.folder.recorder = Slow()  # type: ignore[union-attr]
    learner.step(3)
    learner._replica.saving.wait()
    Slow.asks = True
    return learner


@scene
def save(directory: Path) -> None:
    saving(directory).save()
    say("went on")


@scene
def save_behind(directory: Path) -> None:
    saving(directory).save(wait=False)
    time.sleep(SOON)


@scene
def idle(directory: Path) -> None:
    learner = TRAINING.learner(directory)
    learner.step(2)
    learner.save()
    learner.step()
    say("signal")
    time.sleep(SOON)


@scene
def after_the_background(directory: Path) -> None:
    learner = TRAINING.learner(directory)
    learner.start()
    learner.pause()
    learner.save()
    say("signal")
    time.sleep(SOON)


@scene
def hangs(directory: Path) -> None:
    def hang() -> None:
        while (found := Artifacts(directory).find("latest")) and (found.epoch, found.step) != (2, 1):
            time.sleep(0.01)  # the second signal waits for no save
        told()
        say("signal")
        time.sleep(SOON)

    learner_at(directory, AT, hang).fit()


@scene
def twice(directory: Path) -> None:
    """A closed terminal's signal, once more while the state is written."""

    def both() -> None:
        told()
        say("signal")
        time.sleep(0.2)

    learner_at(directory, AT, both).fit()


@scene
def ignored(directory: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    learner_at(directory, AT, lambda: (say("signal"), time.sleep(0.2))).fit()
    say("finished")


@scene
def own_handler(directory: Path) -> None:
    came = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: came.set())

    def strike() -> None:
        say("signal")
        came.wait(SOON)

    learner_at(directory, AT, strike).fit()
    say("finished")


@scene
def nothing_kept(directory: Path) -> None:
    learner_at(directory, AT, configure=lambda builder: builder.autosave(2, on_pause=False)).fit()


@scene
def workers(directory: Path) -> None:
    """The whole group of processes is told, the loader's workers too."""
    os.setpgid(0, 0)
    learner = learner_at(directory, AT, told_and_their_end)
    train = DataLoader(Noisy(7 * BATCH - 2, 1), batch_size=BATCH, shuffle=True, num_workers=2)
    learner.fit(train)


@scene
def own_children(directory: Path) -> None:
    """The user hears of ended children by a handler, set before torch's; one ends after the signal came."""
    os.setpgid(0, 0)
    heard = threading.Event()
    signal.signal(signal.SIGCHLD, lambda *_: heard.set())

    def strike() -> None:
        told_and_their_end()
        heard.clear()
        subprocess.run(["true"], check=True)
        say("heard" if heard.wait(SOON) else "unheard")

    learner = learner_at(directory, AT, strike)
    learner.fit(DataLoader(Noisy(7 * BATCH - 2, 1), batch_size=BATCH, shuffle=True, num_workers=2))


@scene
def evaluation(directory: Path) -> None:
    learner = learner_at(directory, 6)
    learner.step(3)
    learner.save()
    learner.evaluate(DataLoader(Noisy(40, 3), batch_size=8))
    say("went on")


def life(play: Scene, directory: Path) -> None:
    try:
        play(directory)
    except BaseException:
        say("raised " + traceback.format_exc().replace("\n", "\\n"))
    os._exit(0)


def played(name: str, directory: Path, signum: int) -> dict[str, Any]:
    """A scene in a process of its own, which gets the signal each time that it asks for it."""
    global TOLD
    reads, writes = os.pipe()
    terminal = -1
    if name.startswith("terminal"):
        pid, terminal = pty.fork()
    else:
        pid = os.fork()
    if not pid:
        os.close(reads)
        TOLD = writes
        for each in (signal.SIGTERM, signal.SIGHUP):
            if name != "ignored":
                signal.signal(each, signal.SIG_DFL)
        life(SCENES[name.removeprefix("terminal ")], directory)
    os.close(writes)
    lines = []
    with os.fdopen(reads) as pipe:
        for line in pipe:
            lines.append(line.strip())
            if lines[-1] == "signal":
                if terminal >= 0:
                    os.close(terminal)
                else:
                    (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signum)
    status = os.waitpid(pid, 0)[1]
    return {"code": os.waitstatus_to_exitcode(status), "told": [each for each in lines if each != "signal"]}


def looked_at(directory: Path, straight: Path) -> dict[str, Any]:
    """In a process of its own: where the newest checkpoint stands, and what is wrong at the run's end."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        found: dict[str, Any]
        try:
            learner = TRAINING.resumed(directory)
            at = learner.position
            learner.fit()
            wrong = wrong_at_the_end(learner, directory, pickle.loads(straight.read_bytes()))
            found = {"at": [at.epoch, at.split, at.step], "wrong": wrong}
        except BaseException:
            found = {"at": None, "wrong": [traceback.format_exc()]}
        os.write(writes, json.dumps(found).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def main() -> None:
    root = Path(sys.argv[1])
    straight = root / "straight.pickle"
    straight.write_bytes(pickle.dumps(TRAINING.straight(root / "straight")))
    print("ready", flush=True)
    for line in sys.stdin:
        name, directory, signum = json.loads(line)
        ran = played(name, Path(directory), signum)
        print(json.dumps({**ran, **looked_at(Path(directory), straight)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""A process that opens damaged runs, and is watched: by a limit of memory, by an alarm, by an audit hook.

    python hostile_worker.py SAMPLES WORK FIRST COUNT

writes a line of JSON for each mutation that did what none may do, and a last one with figures. The number of
the mutation at hand is in WORK/at, for when the process does not live to tell it.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hostile_mutations
import torch
from hostile_run import RECORDERS, Files, files_of, learner_in, put

from notebook_learner.artifacts import run_info
from notebook_learner.artifacts.artifacts import Artifacts
from notebook_learner.artifacts.clock import Clock
from notebook_learner.artifacts.index import read_header
from notebook_learner.artifacts.read_record import read_record
from notebook_learner.artifacts.run_info import RunInfo
from notebook_learner.artifacts.timeline import TimelineMark, read_timeline
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.checkpoint.formats import is_known, recorder_for
from notebook_learner.errors import NotebookLearnerError
from notebook_learner.recipe import environment
from notebook_learner.store import durable
from notebook_learner.store import files as file_calls

LONGEST = 5
"""Seconds that one mutation may take."""
SPARE = 24 << 20
"""Bytes of memory that have nothing to do with a file's size: arenas of allocators, a tensor of work."""

_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "pickle.find_class",
    "ctypes.dlopen",
    "socket.connect",
    "compile",
    "exec",
    "import",
    "marshal.loads",
)
_OF_TORCH = ("ctypes.dlopen", ("libnvidia-ml.so.1",))
"""What a torch that was built for CUDA loads wherever it counts devices, also where there are none."""
_PATHS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.truncate", "os.mkdir", "os.rmdir")

_SOCKETS = os.path.join(tempfile.gettempdir(), f"notebook_learner-{os.geteuid()}")
_PYTHON = (sys.prefix, sys.base_prefix, *filter(None, sys.path))
_GIT = {str(above / ".git" / name) for above in (Path.cwd(), *Path.cwd().parents) for name in ("", "HEAD")}
"""Where the commit of the program's own folder is looked for."""
_OWN = (*map(os.path.realpath, (*_PYTHON, _SOCKETS)), "/proc/meminfo", "/proc/cpuinfo")
"""Python's, where the versions of packages are read (imports are noted all the same), and the folder of the
user's sockets, one of which a learner makes that goes on."""


class Watch:
    """Notes whatever code a file makes run, and whatever it makes open elsewhere."""

    def __init__(self, home: Path) -> None:
        self.home = os.path.realpath(home)
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _FORBIDDEN and (event, args) != _OF_TORCH:
            self.seen.append(f"{event} {str(args)[:200]}")
        elif event in _PATHS and isinstance(args[0], (str, bytes, os.PathLike)):
            path = os.fsdecode(args[0])
            if event == "open" and args[2] & os.O_NOFOLLOW:  # whatever its last part links to is not opened
                path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            else:
                path = os.path.realpath(path)
            known = path == self.home or path.startswith((self.home + os.sep, *_OWN)) or path in _GIT
            if not known:
                self.seen.append(f"{event} {path}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.seen, self.on = [], True
        try:
            yield
        finally:
            self.on = False


class Largest:
    """The largest tensor on the host that was asked for, whether or not its memory was touched."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._empty = torch.empty
        torch.empty = self._measured  # type: ignore[assignment]

    def _measured(self, *size: Any, **options: Any) -> Any:
        if options.get("device") != "meta":
            self.nbytes = max(self.nbytes, self._empty(*size, **{**options, "device": "meta"}).nbytes)
        return self._empty(*size, **options)


def memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(key)


class Exercise:
    """Opens a run with everything that opens runs."""

    def __init__(self, directory: Path, watch: Watch, largest: Largest) -> None:
        self.directory = directory
        self.watch, self.largest = watch, largest
        self.outcomes: Counter[str] = Counter()
        self.found: list[dict[str, Any]] = []
        self.case = 0
        self.most_memory = self.most_seconds = 0.0

    def run(self, case: int, files: Files, restored: Any) -> None:
        self.case = case
        put(self.directory, files)
        size = sum(map(len, files.values()))
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        self.largest.nbytes = 0
        started = time.perf_counter()
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        with self.watch.watching():
            if restored is not None:
                self.restore(restored)
            else:
                self.read(files, case % 2)
        faulthandler.cancel_dump_traceback_later()
        seconds = time.perf_counter() - started
        grown = memory("VmHWM") - before
        self.most_seconds = max(self.most_seconds, seconds)
        self.most_memory = max(self.most_memory, grown)
        if self.watch.seen:
            self.report("watch", f"outside or code: {sorted(set(self.watch.seen))[:5]}")
        if grown > 2 * size + SPARE:
            self.report("memory", f"{grown} bytes for a run of {size}")
        if self.largest.nbytes > 2 * size:
            self.report("memory", f"a tensor of {self.largest.nbytes} bytes for a run of {size}")

    def read(self, files: Files, how: int | None = None) -> None:
        """One half of what reads runs, or both."""
        if how != 1:
            self.read_checkpoints(files)
        if how != 0:
            self.read_artifacts()

    def read_checkpoints(self, files: Files) -> None:
        directory = self.directory
        folder = CheckpointFolder(directory / "checkpoint")
        infos = self.attempt("list", folder.list) or []
        for which in ("best", "2-3"):
            self.attempt("find", lambda which=which: folder.find(which))
        self.attempt("leftovers", folder.leftovers)
        for info in infos:
            self.attempt("info", lambda info=info: (repr(info), info.place, info.when, info.key))
            for part in info.files:
                self.attempt("read", lambda info=info, part=part: folder.read(info, part))
        for name in files:
            suffix = name.partition(".")[2]
            if name.startswith("checkpoint/") and is_known(suffix) and (directory / name).exists():
                self.attempt(
                    "outline", lambda name=name, suffix=suffix: self.outline(directory / name, suffix)
                )

    def read_artifacts(self) -> None:
        directory = self.directory
        self.attempt("record", lambda: read_record(directory))
        self.attempt("timeline", lambda: read_timeline(directory / "experiment.log"))
        self.attempt("header", self.header)
        artifacts = Artifacts(directory)
        for verb in ("run", "timeline", "status", "epochs_done", "checkpoints"):
            self.attempt(f"Artifacts.{verb}", lambda verb=verb: getattr(artifacts, verb))
        self.attempt("Artifacts.verify", artifacts.verify)
        self.attempt("Artifacts.repr", lambda: (repr(artifacts), artifacts._repr_html_()))
        self.attempt("Artifacts.series", lambda: artifacts.series("Loss", "train"))
        self.attempt("Artifacts.state_dict", lambda: artifacts.state_dict("latest"))

    def header(self) -> None:
        told = read_header(self.directory / "artifacts.h5")
        RunInfo.from_json(told.get("run"))
        Clock.from_json(told.get("clock"))
        for row in told["timeline"] if isinstance(told.get("timeline"), list) else ():
            TimelineMark.from_json(row)

    def outline(self, path: Path, suffix: str) -> None:
        with suppress(OSError), durable.opened(path) as file:  # what is no plain file
            recorder_for(suffix).outline(file)

    def restore(self, learner: Any) -> None:
        before, schedule = everything(learner), inside(learner)
        done = self.attempt("restore", lambda: (learner.restore("latest"), True)[1])
        if done:  # a state may lie about numbers; then a step may fail, but it must end
            with suppress(Exception):
                learner.step(1)
        elif list(differences(before, everything(learner))) or schedule != inside(learner):
            found = [*differences(before, everything(learner)), "schedule"][:3]
            self.report("restore", f"refused, but it changed the learner: {found}")

    def attempt(self, verb: str, work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except NotebookLearnerError as error:
            self.outcomes["refused"] += 1
            text = str(error)
            if not text or len(text) > 20_000:
                self.report(verb, f"a message of {len(text)} characters")
            return None
        except OSError as error:
            if verb == "header":  # what it promises
                return None
            self.report(verb, repr(error), error)
            return None
        except Exception as error:
            self.report(verb, repr(error)[:300], error)
            return None
        self.outcomes["taken"] += 1
        return result

    def report(self, verb: str, what: str, error: BaseException | None = None) -> None:
        was, self.watch.on = self.watch.on, False
        trace = "" if error is None else "".join(traceback.format_exception(error))
        self.watch.on = was
        self.found.append({"case": self.case, "verb": verb, "what": what, "trace": trace[-1500:]})


def everything(learner: Any) -> dict[str, Any]:
    learner._replica.carried.tidy()  # without objects that were made for a state and are referred to no more
    state = learner.capture()
    return {"position": state.position, **state.parts, "carried": state.parts["carried"].plain()}


def inside(learner: Any) -> list[str]:
    """The attributes of the live scheduler: a state must not add or replace one by another kind."""
    return [
        f"{name}: {type(value).__name__}"
        for name, value in sorted(vars(learner._replica.parts["scheduler"].scheduler).items())
    ]


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if type(one) is not type(other):
        yield f"{path}: {type(one).__name__} against {type(other).__name__}"
    elif isinstance(one, torch.Tensor):
        if (
            one.dtype != other.dtype
            or one.shape != other.shape
            or one.numpy().tobytes() != other.numpy().tobytes()
        ):
            yield path
    elif isinstance(one, dict):
        if one.keys() != other.keys():
            yield f"{path}: keys"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{path}/{index}")
    elif repr(one) != repr(other):
        yield f"{path}: {one!r} against {other!r}"


def mutation(samples: dict[str, Files], case: int) -> tuple[str, Files]:
    """The case's recorder, and its run; every time the same."""
    chance = random.Random(case)
    name = chance.choice(sorted(samples))
    how = hostile_mutations.sealed if chance.random() < 0.6 else hostile_mutations.blind
    return name, how(samples[name], chance)


def main(samples_at: Path, work: Path, first: int, count: int) -> None:
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    torch.set_num_threads(1)
    # Both ask wherever the process stands, whatever a file says.
    run_info.git_commit = environment.changes_in = lambda *_: None
    file_calls.sync = file_calls.sync_directory = lambda *_: None  # no power cut happens here
    samples = {path.name: files_of(path) for path in sorted(samples_at.iterdir())}
    directory = work / "run"
    directory.mkdir(parents=True)
    watch, largest = Watch(work), Largest()
    exercise = Exercise(directory, watch, largest)
    for name, files in samples.items():  # load whatever is loaded when it is first needed
        put(directory, files)
        exercise.read(files)
        if name != "half":
            learner = learner_in(directory, RECORDERS[name]())
            learner.restore("latest")
            learner.step(1)
            learner._replica.saving.close()
    if exercise.found:
        print(json.dumps({"what": "an undamaged run was refused", **exercise.found[0]}), flush=True)
    limit = memory("VmSize") + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with open(work / "at", "w") as at:
        for case in range(first, first + count):
            os.pwrite(at.fileno(), f"{case:12}".encode(), 0)
            name, files = mutation(samples, case)
            learner = None
            if case % 5 < 2 and name != "half":
                put(directory, samples[name])
                learner = learner_in(directory, RECORDERS[name]())
            exercise.run(case, files, learner)
            if learner is not None:
                with suppress(NotebookLearnerError):
                    learner._replica.saving.close()
            for found in exercise.found:
                print(json.dumps({"file": name, **found}), flush=True)
            exercise.found.clear()
    figures = {
        **exercise.outcomes,
        "most_memory": exercise.most_memory,
        "most_seconds": exercise.most_seconds,
    }
    print(json.dumps({"figures": figures}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

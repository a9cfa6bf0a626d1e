"""A run of a stranger with a link, a pipe or a device in it, and what a person does with such a run."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.artifacts import Artifacts
from notebook_learner.errors import NotebookLearnerError
from notebook_learner.metric import Loss
from notebook_learner.remote.detached import process_of

X = torch.arange(24.0).reshape(12, 2) / 24
Y = X.sum(1, keepdim=True)
LONGEST = 30
"""Seconds that a case may take; one that hangs takes for ever."""

FILES = (
    *("experiment.log", "artifacts.h5", "checkpoint/state-2.h5", "checkpoint/model-2.h5"),
    *("train/epoch-1/Loss.log", "train/epoch-3/Loss.log", "valid/epoch-1/Loss.log", "test/clean/Loss.log"),
    *("detached.json", ".detached.json.new", "detached.log", "control.sock", ".control.sock.new"),
    *(
        ".artifacts.h5.01234567.tmp",
        "checkpoint/.state-9.h5.01234567.tmp",
        "checkpoint/.model-9.h5.01234567.tmp",
    ),
)
FOLDERS = (
    *("checkpoint", "train", "train/epoch-2", "train/epoch-3", "train/epoch-4", "valid", "valid/epoch-1"),
    *("valid/epoch-3", "test", "test/clean", "test/.clean.tmp", ".earlier-run"),
)
PLACES = (*FILES, *FOLDERS)


def learner_in(directory: Path, begin: Callable[[LearnerBuilder], object] = lambda builder: None) -> Learner:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    builder = LearnerBuilder(directory).loss(nn.functional.mse_loss).metrics(Loss()).num_epochs(4)
    builder.renderer("silent").with_file_checkpointer().with_batch_size(4).seed(1)
    begin(builder)
    data = TensorDataset(X, Y)
    return builder.build(model, torch.optim.Adam(model.parameters(), lr=0.01), None, data, data)


def write_run(directory: Path) -> None:
    """A run that stands in its third epoch, and has measured a set and been handed over before."""
    learner = learner_in(directory)
    learner.run_until((3, 2))
    learner.save()
    learner.evaluate(TensorDataset(X, Y), name="clean")
    process_of(os.getpid()).ends(directory, "paused", "", 4)
    _over(learner)
    (directory / "control.sock").unlink(missing_ok=True)
    (directory / "detached.log").write_text("printed\n")


# What lies there -------------------------------------------------------------------------------------


class Outside:
    """What is the user's own: a copy of what a link takes the place of, and more beside it."""

    def __init__(self, root: Path, run: Path, place: str) -> None:
        self.root = root
        root.mkdir()
        self.file, self.folder, self.missing = root / "notes.txt", root / "project", root / "not there"
        (root / ".bashrc").write_text("alias ll='ls -l'\n")
        there = run / place
        if there.is_file():
            shutil.copy(there, self.file)
        else:
            self.file.write_text("".join(f"{n},1\n" for n in range(9)))
        if there.is_dir():
            shutil.copytree(there, self.folder)
        else:
            self.folder.mkdir()
        (self.folder / "Loss.log").write_text("1,1\n2,1\n3,1\n4,1\nhalf a li")
        (self.folder / "state-7.h5").write_text("mine")
        (self.folder / ".model-7.h5.01234567.tmp").write_text("mine, too")
        (self.folder / "epoch-7").mkdir(exist_ok=True)
        (self.folder / "epoch-7" / "Loss.log").write_text("my own\n")

    def listing(self) -> dict[str, tuple[Any, ...]]:
        """Everything there, by its kind, its bytes, when it was written, and who may read it."""
        return {str(path.relative_to(self.root)): _seen(path) for path in [self.root, *self.root.rglob("*")]}


def _seen(path: Path) -> tuple[Any, ...]:
    there = path.lstat()
    kind = stat.S_IFMT(there.st_mode)
    data = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(kind) else ""
    return kind, data, there.st_mtime_ns, stat.S_IMODE(there.st_mode), there.st_size


def _to_the_file(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.file)


def _to_the_folder(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.folder)


def _to_nothing(path: Path, outside: Outside) -> None:
    path.symlink_to(outside.missing)


def _to_itself(path: Path, outside: Outside) -> None:
    path.symlink_to(path.name)


def _hard_to_see(path: Path, outside: Outside) -> None:
    """Relative, by way of a folder inside and a second link."""
    target = outside.folder if path.name in {Path(each).name for each in FOLDERS} else outside.file
    hop = path.with_name(f"{path.name} ")
    hop.symlink_to(os.path.relpath(target, path.parent))
    path.symlink_to(f"./{hop.name}")


def _a_hard_link(path: Path, outside: Outside) -> None:
    os.link(outside.file, path)


def _a_pipe(path: Path, outside: Outside) -> None:
    os.mkfifo(path)


def _a_socket(path: Path, outside: Outside) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _a_device(path: Path, outside: Outside) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _a_folder(path: Path, outside: Outside) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("mine")


def _a_file(path: Path, outside: Outside) -> None:
    path.write_text("mine")


KINDS: dict[str, Callable[[Path, Outside], None]] = {
    "link to a file": _to_the_file,
    "link to a folder": _to_the_folder,
    "dangling link": _to_nothing,
    "link to itself": _to_itself,
    "relative link by a second one": _hard_to_see,
    "hard link": _a_hard_link,
    "pipe": _a_pipe,
    "socket": _a_socket,
    "device": _a_device,
    "folder": _a_folder,
    "file": _a_file,
}


def put(kind: str, run: Path, place: str, outside: Outside) -> None:
    """Something else where a file or a folder of the run lies, or would."""
    path = run / place
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path, outside)


# What a person does ----------------------------------------------------------------------------------


def _each(*verbs: Callable[[], object]) -> list[str]:
    """Do one after the other; what each was refused with. Anything but an error of ours goes on up."""
    told = []
    for verb in verbs:
        try:
            verb()
        except NotebookLearnerError as error:
            assert str(error)
            told.append(str(error))
    return told


def _built(run: Path, begin: Callable[[LearnerBuilder], object]) -> tuple[Learner | None, list[str]]:
    made: list[Learner] = []
    told = _each(lambda: made.append(learner_in(run, begin)))
    return (made[0] if made else None), told


def _trained(run: Path, begin: Callable[[LearnerBuilder], object], *names: str) -> list[str]:
    learner, told = _built(run, begin)
    if learner is None:
        return told
    try:
        verbs: dict[str, Callable[[], object]] = {
            "step": lambda: learner.step(1),
            "save": learner.save,
            "rewind": lambda: learner.rewind(1),
            "evaluate": lambda: learner.evaluate(TensorDataset(X, Y), name="clean"),
            "restore": lambda: learner.restore("latest"),
            "fork": lambda: learner.fork(run.with_name("fork")).step(1),
            "fit": learner.fit,
            "reset": lambda: learner.restore(1),
        }
        return told + _each(*(verbs[name] for name in names))
    finally:
        _over(learner)


def _over(learner: Learner) -> None:
    """Nothing is tried again once the case is over, and its directory gone."""
    keeper = learner._replica.saving.store.keeper  # type: ignore[union-attr]
    keeper.background.wait()
    keeper.give_way()


def _looked_after(run: Path) -> list[str]:
    def look() -> None:
        artifacts = Artifacts(run)
        (
            repr(artifacts),
            artifacts._repr_html_(),
            artifacts.verify(),
            artifacts.timeline,
            artifacts.checkpoints,
        )

    return _each(
        look,
        lambda: Artifacts(run).repair(),
        lambda: Artifacts(run).export(run.with_name("exported.h5")),
        lambda: Artifacts(run).export(run / "plots.h5"),
        look,
    )


SCENARIOS: dict[str, Callable[[Path], list[str]]] = {
    "resume, step": lambda run: _trained(run, lambda builder: builder.resume(), "step", "save", "fit"),
    "resume, others": lambda run: _trained(
        run, lambda builder: builder.resume(), "evaluate", "rewind", "step", "save", "restore", "fork", "step"
    ),
    "checkpoint": lambda run: _trained(run, lambda builder: builder.checkpoint(1), "step", "save", "reset"),
    "overwrite": lambda run: _trained(run, lambda builder: builder.overwrite(), "fit", "evaluate"),
    "new run": lambda run: _trained(run, lambda builder: None, "evaluate", "step", "save", "fit"),
    "repair and export": _looked_after,
}


class HangsError(BaseException):
    """Nothing of ours catches it."""


@contextmanager
def bounded() -> Iterator[None]:
    """End what hangs, and say where."""

    def ring(number: int, frame: Any) -> None:
        raise HangsError(f"it hangs in {frame}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Every place, with everything that may lie there, and everything that a person does."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        run = Path(folder, "run")
        write_run(run)
        for place in PLACES:
            for kind in KINDS:
                for name, does in SCENARIOS.items():
                    here = Path(folder, "cases", place, kind, name)
                    here.mkdir(parents=True)
                    outside, copy = Outside(here / "outside", run, place), here / "run"
                    shutil.copytree(run, copy)
                    put(kind, copy, place, outside)
                    before = outside.listing()
                    with bounded():
                        told = does(copy)
                    changed = outside.listing() != before
                    print(f"{place}, {kind}, {name}: {'CHANGED OUTSIDE ' if changed else ''}{told}"[:300])
                    shutil.rmtree(here)


if __name__ == "__main__":
    main()

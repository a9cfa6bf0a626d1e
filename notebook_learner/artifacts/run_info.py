"""The description of a run: what is known of it besides its measurements."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import DamagedError
from ..event.values import MetricInfo, RunOpened
from ..store import durable
from .claims import Claims

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"ref: (refs/[\w./@+-]+)")
_LARGEST_GIT_FILE = 1 << 24


@dataclass(frozen=True)
class RunInfo:
    """The description of a run: what is trained, how, with which versions, when and where, but not by whom.

    >>> run = RunInfo.of(RunOpened("runs/digits", "Net", 1290, 10, ()), now=1795241581.0)
    >>> run.model, run.num_epochs, run.started, run.ended
    ('Net', 10, 1795241581.0, None)
    >>> RunInfo.from_json(run.to_json()) == run
    True
    """

    directory: str
    model: str
    parameters: int
    num_epochs: int
    metrics: tuple[MetricInfo, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    seed: str | None = None
    commit: str | None = None
    """The git commit of the folder in which the run was started; None if it is not in a repository."""
    host: str = ""
    started: float = 0.0
    """Seconds since 1970."""
    ended: float | None = None
    """None while the run trains or is paused, and if it was killed."""

    @classmethod
    def of(cls, opened: RunOpened, now: float) -> RunInfo:
        """Describe the run that opens now, in this process."""
        settings = dict(opened.settings)
        return cls(
            directory=opened.directory,
            model=opened.model,
            parameters=opened.parameters,
            num_epochs=opened.num_epochs,
            metrics=opened.metrics,
            settings=settings,
            versions=_versions(),
            device=settings.get("device", ""),
            seed=settings.get("seed"),
            commit=git_commit(),
            host=platform.node(),
            started=now,
        )

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return dict(self._told)

    @cached_property
    def _told(self) -> dict[str, Any]:
        """Made once: the thread that trains writes it with every checkpoint."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__},
            "metrics": [asdict(info) for info in self.metrics],
            "settings": dict(self.settings),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, value: object) -> RunInfo:
        """Read what `to_json` returned; unknown members are ignored.

        Raises:
            DamagedError: a value is missing, or a run cannot have it.
        """
        run = Claims(value, "the run of an artifacts.h5")
        return cls(
            directory=run.text("directory"),
            model=run.text("model"),
            parameters=run.whole("parameters"),
            num_epochs=run.whole("num_epochs"),
            metrics=tuple(_metric_info(each) for each in run.items("metrics")),
            settings=run.texts("settings"),
            versions=run.texts("versions"),
            device=run.text("device", ""),
            seed=run.text_or_none("seed"),
            commit=run.text_or_none("commit"),
            host=run.text("host", ""),
            started=run.number("started"),
            ended=run.number_or_none("ended"),
        )


def _metric_info(value: object) -> MetricInfo:
    told = Claims(value, "a metric of an artifacts.h5")
    return MetricInfo(
        name=told.metric_name("name"),
        split=told.split("split"),
        unit=told.text("unit", ""),
        higher_is_better=told.flag_or_none("higher_is_better"),
        kind="text" if told.text("kind", "numeric") == "text" else "numeric",
        plotted=told.flag("plotted"),
        of_epochs=told.flag_or_none("of_epochs") is not False,  # earlier versions did not write it
    )


def _versions() -> dict[str, str]:
    from importlib import metadata

    import numpy
    import torch

    try:
        ours = metadata.version("notebook_learner")
    except metadata.PackageNotFoundError:  # run from a source folder that was not installed
        ours = "unknown"
    return {
        "notebook_learner": ours,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


# git -------------------------------------------------------------------------------------------------


def git_commit(folder: str | os.PathLike[str] = ".") -> str | None:
    """The commit that is checked out in a folder; None if there is no commit. Never raises an error. It is
    read without git, which takes 5 ms or more to start and may hang on a network file system."""
    with suppress(OSError, DamagedError, ValueError, RuntimeError):
        here = Path(folder).resolve()
        for above in (here, *here.parents):
            commit = _commit_in(above / ".git")
            if commit is not None:
                return commit or None
    return None


def _commit_in(git: Path) -> str | None:
    """The commit of one repository, "" if it has no commit yet; None if this is not a repository."""
    home = _git_home(git)
    try:
        head = _read(home / "HEAD")
    except FileNotFoundError:
        return None
    ref = _REF.fullmatch(head)
    if ref is None:
        return head if _COMMIT.fullmatch(head) else ""
    if ".." in ref[1]:
        return ""
    shared = home
    with suppress(FileNotFoundError):  # a worktree keeps its branches with the others
        shared = home / _read(home / "commondir")
    for place in (home, shared):
        with suppress(FileNotFoundError):
            found = _read(place / ref[1])
            return found if _COMMIT.fullmatch(found) else ""
    return _packed(shared, ref[1])


def _git_home(git: Path) -> Path:
    """The folder of a repository's files: a worktree and a submodule have a file that names it."""
    try:
        word, _, target = _read(git).partition(" ")
    except OSError:
        return git
    return git.parent / target if word == "gitdir:" else git


def _packed(home: Path, ref: str) -> str:
    with suppress(FileNotFoundError):
        for line in _read(home / "packed-refs").splitlines():
            commit, _, name = line.partition(" ")
            if name == ref and _COMMIT.fullmatch(commit):
                return commit
    return ""


def _read(path: Path) -> str:
    with durable.opened(path) as file:
        return file.read(0, min(file.size, _LARGEST_GIT_FILE)).decode(errors="replace").strip()

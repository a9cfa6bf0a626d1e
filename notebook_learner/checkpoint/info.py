"""What is known of a checkpoint without its tensors: the commit file, `state-N`, holds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from ..errors import DamagedError
from ..store.layout import SPLITS
from .passes import line_of
from .recorder import Decoded

Kind = Literal["epoch", "auto", "manual"]
"""Why it was saved: an epoch ended; a pause, a timer or the end of the process; `learner.save()`."""

LABEL = re.compile(r"[0-9]+(?:-(?:valid-)?[0-9]+)?")
"""The form of a label."""

PARTS = ("model", "optim", "scheduler")
"""The files of a checkpoint except its commit file, by the names that Burn uses."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint of a run.

    `label` is what its files end with: "3" at the end of epoch 3, "3-117" after training step 117 of
    epoch 3, "3-valid-5" after validation step 5.
    """

    label: str
    epoch: int
    """The epoch that had ended, or the one that was running."""
    step: int
    """Finished steps of the running split; at the end of an epoch all of its training steps."""
    iteration: int
    """Finished training steps of the whole run."""
    split: Literal["train", "valid"] = "train"
    kind: Kind = "epoch"
    run: str = ""
    """Its run: a folder may also hold checkpoints of an earlier run."""
    sequence: int = 0
    """Counts the checkpoints of a run in the order in which they were saved."""
    saved_at: float = 0.0
    """Seconds since 1970."""
    size: int = 0
    """Bytes on disk, all files together."""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The last epoch values known when it was saved: {"valid": {"Loss": 0.12}, ...}."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The name of each file, by part: {"model": "model-3.h5", ..., "state": "state-3.h5"}."""
    stretch: str = ""
    """The branch of its run on which it was saved: a new branch begins each time the run goes back."""
    exact: bool = True
    """Whether training can go on from it. It cannot from half precision."""
    damage: str = ""
    """What is wrong with it; empty if it is complete."""

    @property
    def ends_epoch(self) -> bool:
        """Whether it was saved at the end of an epoch."""
        return "-" not in self.label

    @property
    def key(self) -> tuple[int, int, int]:
        """The key that orders places in a run; the end of epoch 3 has the key of the start of epoch 4."""
        if self.ends_epoch:
            return (self.epoch + 1, 0, 0)
        return (self.epoch, 1 if self.split == "valid" else 0, self.step)

    @property
    def place(self) -> str:
        """Where training stood, in words.

        >>> CheckpointInfo("3-117", 3, 117, 597).place, CheckpointInfo("3", 3, 240, 720).place
        ('epoch 3, step 117', 'end of epoch 3')
        """
        if self.ends_epoch:
            return f"end of epoch {self.epoch}"
        return f"epoch {self.epoch}, {'' if self.split == 'train' else 'valid, '}step {self.step}"

    @property
    def when(self) -> datetime:
        """When it was saved, in this machine's time zone."""
        return datetime.fromtimestamp(self.saved_at, timezone.utc).astimezone()


def label_of(epoch: int, split: str, step: int) -> str:
    """The label with which the files of a checkpoint at this position end.

    >>> label_of(4, "train", 0), label_of(3, "train", 117), label_of(3, "valid", 5)
    ('3', '3-117', '3-valid-5')
    """
    if split == "train" and step == 0:
        return str(epoch - 1)
    return f"{epoch}-{step}" if split == "train" else f"{epoch}-{split}-{step}"


def info_of(commit: Mapping[str, Any], size: int, files: Mapping[str, str]) -> CheckpointInfo:
    """The info of a checkpoint of so many bytes in these files, from its commit file."""
    return CheckpointInfo(
        label=commit["label"],
        epoch=commit["epoch"],
        step=commit["step"],
        iteration=commit["iteration"],
        split=commit["split"],
        kind=commit["kind"],
        run=commit["run_id"],
        sequence=commit["sequence"],
        saved_at=commit["saved_at"],
        size=size,
        metrics=commit["metrics"],
        files=files,
        stretch=_stretch(commit.get("lineage")),
        exact=commit["exact"],
    )


def _stretch(lineage: Any) -> str:
    """The last one that a commit file lists; earlier versions list none."""
    last = lineage[-1] if isinstance(lineage, list) and lineage else None
    name = last[0] if isinstance(last, (list, tuple)) and last else ""
    return name if isinstance(name, str) else ""


SCHEMA = 2
"""The version that is written. In version 1 all passes before a checkpoint were in its commit file."""
FORMAT = "notebook_learner checkpoint"
KINDS = get_args(Kind)


def checked(decoded: Decoded, path: Path, *, only_head: bool = False) -> dict[str, Any]:
    """Check that every value of a commit has the right type: the file may come from a stranger. With
    `only_head`, only the head of the file was read."""
    commit = decoded.value
    if not isinstance(commit, dict) or commit.get("format") != FORMAT:
        raise damaged(path, "it is not the commit file of a checkpoint")
    if type(commit.get("schema")) is not int or commit["schema"] > SCHEMA:
        raise damaged(
            path,
            f"it was written by a newer version (schema {commit.get('schema')}); update notebook_learner",
        )
    for key, fits in (_HEAD_KEYS if only_head else _COMMIT_KEYS).items():
        if not fits(commit.get(key)):
            raise damaged(path, f"its {key!r} is missing, or no value that it can have")
    if _label_told(commit) != commit["label"]:
        raise damaged(path, f"it speaks of another place than its label, {commit['label'][:40]!r}")
    return commit


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_time(value: Any) -> bool:
    return type(value) is float and _EARLIEST < value < _LATEST


def _are_metrics(value: Any) -> bool:
    """Numbers by split and name; NaN is a number here."""
    return isinstance(value, dict) and all(
        isinstance(of_split, dict) and all(type(number) in (int, float) for number in of_split.values())
        for of_split in value.values()
    )


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(entry, dict)
        and _is_count(entry.get("size"))
        and isinstance(entry.get("digest"), str)
        and isinstance(entry.get("name"), str)
        for entry in value.values()
    )


def _is_rule(value: Any) -> bool:
    """The rule for "best": None, or all values of a KeepBest."""
    return not value or (
        isinstance(value, dict)
        and isinstance(value.get("metric"), str)
        and value["metric"] != ""
        and value.get("split") in SPLITS
        and value.get("mode") in (None, "min", "max")
    )


def _is_line(value: Any) -> bool:
    try:
        line_of(value)
    except ValueError:
        return False
    return True


def _label_told(commit: Mapping[str, Any]) -> str:
    """The label of the place in a commit. Only the label says whether an epoch had ended."""
    epoch, split, step = commit["epoch"], commit["split"], commit["step"]
    return str(epoch) if "-" not in commit["label"] else label_of(epoch, split, step)


_EARLIEST, _LATEST = -(1 << 35), 1 << 37
"""Seconds since 1970: some thousand years inside the limits of Python's calendar. A machine whose clock was
never set may well give a time before 1970."""

_COMMIT_KEYS: dict[str, Callable[[Any], bool]] = {
    "label": lambda value: isinstance(value, str) and LABEL.fullmatch(value) is not None,
    "epoch": _is_count,
    "step": _is_count,
    "iteration": _is_count,
    "split": lambda value: value in SPLITS,
    "kind": lambda value: value in KINDS,
    "run_id": lambda value: isinstance(value, str),
    "sequence": _is_count,
    "saved_at": _is_time,
    "metrics": _are_metrics,
    "files": _are_files,
    "exact": lambda value: isinstance(value, bool),
    "best": _is_rule,
    "lineage": lambda value: value is None or isinstance(value, list),  # none in earlier versions
    "earlier": _is_line,
    "run": lambda value: isinstance(value, dict),
}
_HEAD_KEYS = {key: fits for key, fits in _COMMIT_KEYS.items() if key != "run"}

HEAD = (*_HEAD_KEYS,)
"""What a list of checkpoints shows. It comes first in a commit file, and is read without what follows,"""
REST = "position"
"""which begins with this."""


def damaged(path: Path, why: str) -> DamagedError:
    """The error message for a damaged file."""
    return DamagedError(
        f"{path}: {why}; go on from another checkpoint (checkpoint('latest') takes the last whole one)"
    )

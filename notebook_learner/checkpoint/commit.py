"""The commit file of a checkpoint: `state-3` has the place in training, and size and digest of its siblings.

The file may come from a stranger, so every value is checked before the first one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from ..errors import DamagedError
from ..store.layout import SPLITS
from .info import LABEL, Kind, label_of
from .passes import line_of
from .recorder import Decoded

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

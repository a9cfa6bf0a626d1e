"""What is known of a checkpoint without its tensors: the commit file, `state-N`, holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

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

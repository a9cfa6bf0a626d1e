"""The checkpoints on a run's way. The run cannot go back to a checkpoint of a branch that it has left.

A run goes along a stretch until it goes back, or is restored. There another stretch begins. A checkpoint says
on which stretch it was saved, and which stretches led there. So it lies on the way of a run, of this process
or of a later one, on two conditions: its stretch is part of that way, and it was saved before the way left
the stretch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import uuid4

from ..checkpoint.info import CheckpointInfo
from ..event.position import Position

Key = tuple[int, int, int]
MOST = 64
"""The number of stretches that a checkpoint lists. Earlier ones are forgotten, and with them their
checkpoints."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The stretches that led to a run's place, each with the place at which it began.

    >>> way = Lineage((("a", (1, 0, 0)), ("b", (3, 0, 2))))
    >>> way.holds("a", (3, 0, 2)), way.holds("a", (3, 0, 3)), way.holds("b", (9, 0, 0))
    (True, False, True)
    >>> [began for _, began in way.branched((2, 0, 0)).stretches]
    [(1, 0, 0), (2, 0, 0)]
    """

    stretches: tuple[tuple[str, Key], ...] = ()

    def branched(self, at: Key) -> Lineage:
        """This way up to a place, and a new stretch from there."""
        before = [stretch for stretch in self.stretches if stretch[1] <= at]
        return Lineage((*before[1 - MOST :], (uuid4().hex[:16], at)))

    def holds(self, stretch: str, at: Key) -> bool:
        """Whether this way passed a place of a stretch."""
        names = [name for name, _ in self.stretches]
        if stretch not in names:
            return False
        after = names.index(stretch) + 1
        return after == len(names) or at <= self.stretches[after][1]

    def passes(self, info: CheckpointInfo) -> bool:
        """Whether this way passed a checkpoint, and training can go on from that checkpoint."""
        return info.exact and not info.damage and self.holds(info.stretch, info.key)

    @property
    def plain(self) -> list[Any]:
        """The form that a commit file stores."""
        return [[name, list(began)] for name, began in self.stretches]

    @staticmethod
    def of(commit: Mapping[str, Any]) -> Lineage:
        """What a commit file stores; empty if it is of an earlier version, or is not valid."""
        try:
            told = [(name, tuple(began)) for name, began in commit["lineage"]]
        except (KeyError, TypeError, ValueError):
            return Lineage()
        sound = all(type(name) is str and list(map(type, began)) == [int] * 3 for name, began in told)
        rising = all(one[1] <= other[1] for one, other in pairwise(told))
        return Lineage(tuple(told[-MOST:])) if sound and rising else Lineage()


def place_of(info: CheckpointInfo) -> Position:
    """The position of a checkpoint."""
    if info.ends_epoch:
        return Position(info.epoch + 1, "train", 0, info.iteration)
    return Position(info.epoch, info.split, info.step, info.iteration)

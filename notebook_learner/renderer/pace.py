"""How fast a run goes, and how long it will take, from the wall time that events carry."""

from __future__ import annotations

from collections import deque

from ..event import MetricBlock, Split

WINDOW_SECONDS = 5.0
"""The rate is that of the last seconds, long enough to be readable."""


class Pace:
    """Steps and seconds of both splits. Pauses do not count: only the seconds that steps took."""

    def __init__(self) -> None:
        self.lengths: dict[Split, int] = {}
        """Steps of a pass, where known."""
        self._recent: deque[tuple[int, float, float]] = deque()
        self._steps: dict[Split, int] = {}
        self._seconds: dict[Split, float] = {}
        self._by_epoch: dict[int, float] = {}

    def begin(self, epoch: int, split: Split, total: int | None) -> None:
        """A pass starts: the rate of the other split says nothing about this one."""
        self._recent.clear()
        if total is not None:
            self.lengths[split] = total

    def add(self, block: MetricBlock) -> None:
        """Fold a block in."""
        self._steps[block.split] = self._steps.get(block.split, 0) + block.count
        self._seconds[block.split] = self._seconds.get(block.split, 0.0) + block.seconds
        self._by_epoch[block.epoch] = self._by_epoch.get(block.epoch, 0.0) + block.seconds
        self._recent.append((block.count, _samples(block), block.seconds))
        while len(self._recent) > 1 and sum(entry[2] for entry in self._recent) > WINDOW_SECONDS:
            self._recent.popleft()

    @property
    def elapsed(self) -> float:
        """Seconds spent in steps."""
        return sum(self._by_epoch.values())

    def epoch(self, number: int) -> float:
        """Seconds spent in the steps of an epoch."""
        return self._by_epoch.get(number, 0.0)

    @property
    def steps_per_second(self) -> float | None:
        """The recent rate."""
        seconds = sum(entry[2] for entry in self._recent)
        return sum(entry[0] for entry in self._recent) / seconds if seconds > 0 else None

    @property
    def samples_per_second(self) -> float | None:
        """The recent rate in samples; None where no Loss tells how many samples a step has."""
        seconds = sum(entry[2] for entry in self._recent)
        samples = sum(entry[1] for entry in self._recent)
        return samples / seconds if seconds > 0 and samples > 0 else None

    def left_in_pass(self, step: int, total: int | None) -> float | None:
        """Seconds until the current pass ends."""
        per_second = self.steps_per_second
        return None if total is None or not per_second else max(total - step, 0) / per_second

    def left(self, split: Split, step: int, total: int | None, epochs_after: int) -> float | None:
        """Seconds until the run ends: validation counts too, once it has been seen."""
        here = self.left_in_pass(step, total)
        train, valid = self._whole("train"), self._whole("valid")
        if here is None or (train is None and epochs_after > 0):
            return None
        after = valid or 0.0 if split == "train" else 0.0
        return here + after + max(epochs_after, 0) * ((train or 0.0) + (valid or 0.0))

    def _whole(self, split: Split) -> float | None:
        steps, length = self._steps.get(split, 0), self.lengths.get(split)
        return length * self._seconds[split] / steps if steps and length is not None else None


def _samples(block: MetricBlock) -> float:
    """Loss is weighted by samples, so its weights count them."""
    loss = block.columns.get("Loss")
    return 0.0 if loss is None or loss.weights is None else float(loss.weights.sum())

"""The speed of a run and its remaining time, computed from the wall time in events."""

from __future__ import annotations

from collections import deque

from ..event import MetricBlock, Split

WINDOW_SECONDS = 5.0
"""Seconds over which the rate is averaged: long enough that the shown number is steady."""
VALID_SHARE = 1 / 3
"""The assumed time of a validation step as a share of a training step, before the first one: no backward."""


class Pace:
    """Steps and seconds of both splits. Only the seconds within steps count, not pauses.

    The rate is that of training, also while the run validates. Steps of unknown duration (a resumed run's,
    from its logs) do not count. A rewind keeps the rate: steps take as long as before.
    """

    def __init__(self) -> None:
        self.lengths: dict[Split, int] = {}
        """Steps of a pass, if known."""
        self._recent: dict[Split, deque[tuple[int, float, float]]] = {"train": deque(), "valid": deque()}
        self._by_epoch: dict[int, float] = {}

    def add(self, block: MetricBlock) -> None:
        """Fold a block in."""
        if block.seconds <= 0:
            return
        self.count(block)
        recent = self._recent[block.split]
        recent.append((block.count, _samples(block), block.seconds))
        while len(recent) > 1 and sum(entry[2] for entry in recent) > WINDOW_SECONDS:
            recent.popleft()

    def count(self, block: MetricBlock) -> None:
        """Add its seconds to those of its epoch."""
        self._by_epoch[block.epoch] = self._by_epoch.get(block.epoch, 0.0) + block.seconds

    def start_over(self) -> None:
        """Forget the epochs' seconds: they will be added again."""
        self._by_epoch.clear()

    @property
    def elapsed(self) -> float:
        """Seconds spent in steps."""
        return sum(self._by_epoch.values())

    def epoch(self, number: int) -> float:
        """Seconds spent in the steps of an epoch."""
        return self._by_epoch.get(number, 0.0)

    @property
    def steps_per_second(self) -> float | None:
        """The recent rate of training."""
        step = self._step("train")
        return 1 / step if step else None

    @property
    def samples_per_second(self) -> float | None:
        """The recent rate in samples; None without a Loss, whose weights give the samples of a step."""
        recent = self._recent["train"]
        samples = sum(entry[1] for entry in recent)
        return samples / sum(entry[2] for entry in recent) if samples > 0 else None

    def left_in_pass(self, split: Split, step: int, total: int | None) -> float | None:
        """Seconds until the current pass ends."""
        each = self._step(split)
        return None if total is None or each is None else max(total - step, 0) * each

    def left(self, split: Split, step: int, total: int | None, epochs_after: int) -> float | None:
        """Seconds until the run ends. The validation is included once its length is known."""
        train, valid = self.lengths.get("train"), self.lengths.get("valid", 0)
        after = max(epochs_after, 0)
        if split == "train":
            here, train_steps, valid_steps = total, 0, valid
        else:
            here, train_steps, valid_steps = valid if total is None else total, 0, 0
        if here is None or (train is None and after > 0):
            return None
        here = max(here - step, 0)
        train_steps += after * (train or 0) + (here if split == "train" else 0)
        valid_steps += after * valid + (here if split == "valid" else 0)
        each, valid_each = self._step("train"), self._step("valid")
        if each is None and (train_steps or valid_each is None):
            return None
        return train_steps * (each or 0.0) + valid_steps * (valid_each or 0.0)

    def _step(self, split: Split) -> float | None:
        """The recent seconds per step."""
        recent = self._recent[split]
        if recent:
            return sum(entry[2] for entry in recent) / sum(entry[0] for entry in recent)
        train = self._step("train") if split == "valid" else None
        return None if train is None else VALID_SHARE * train


def _samples(block: MetricBlock) -> float:
    """The number of samples in a block: Loss is weighted by samples, so its weights count them."""
    loss = block.columns.get("Loss")
    return 0.0 if loss is None or loss.weights is None else float(loss.weights.sum())

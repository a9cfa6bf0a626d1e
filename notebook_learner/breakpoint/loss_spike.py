"""Stops the training when the loss jumps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import isfinite, sqrt

from torch import Tensor

from ..event.values import Floats
from .base import Found, Measured, Moment


class LossSpike(Measured):
    """Stop at a step whose loss is far above the losses of the last steps.

    Args:
        z: how many standard deviations above the mean of the last steps.
        ratio: or how many times their mean. It needs losses that are not negative: with a mean below zero it
            never stops, because a multiple of such a mean is a better loss.
        window: how many steps count as the last ones.
        warmup: the number of steps to see before it judges.
    """

    def __init__(
        self, z: float | None = None, *, ratio: float | None = None, window: int = 100, warmup: int = 20
    ) -> None:
        if z is not None and ratio is not None:
            raise ValueError("LossSpike(z, ratio=...): choose one of them")
        self.z = 6.0 if z is None and ratio is None else z
        self.ratio = ratio
        for name, number in (("z", self.z), ("ratio", ratio)):
            if number is not None and not number > 0:
                raise ValueError(f"LossSpike({name}={number!r}): give a number above 0")
        if not 2 <= warmup <= window:
            raise ValueError(f"LossSpike(window={window}, warmup={warmup}): 2 <= warmup <= window")
        self.window, self.warmup = window, warmup
        self._seen: deque[tuple[int, float]] = deque()
        self._sums = (0.0, 0.0)
        """The sums of the values seen and of their squares. `_shift` is subtracted from each value first, so
        that the difference of large numbers stays exact enough."""
        self._shift = 0.0
        self._added = 0

    def measure(self, moment: Moment) -> Tensor:
        return moment.loss

    def judge(self, iterations: Sequence[int], values: Floats) -> Found | None:
        for index, (iteration, value) in enumerate(zip(iterations, values.tolist(), strict=True)):
            if text := self._stands_out(value):
                return Found(index, text)
            if isfinite(value):
                self._add(iteration, value)
        return None

    def forget_after(self, iteration: int) -> None:
        before = len(self._seen)
        while self._seen and self._seen[-1][0] > iteration:
            self._seen.pop()
        if len(self._seen) != before:
            self._sum_up()

    def _add(self, iteration: int, value: float) -> None:
        self._seen.append((iteration, value))
        self._added += 1
        if self._added % self.window == 1:  # now and then, so that rounding errors do not add up
            self._sum_up()
            return
        gone = self._seen.popleft()[1] - self._shift if len(self._seen) > self.window else 0.0
        come = value - self._shift
        self._sums = (self._sums[0] + come - gone, self._sums[1] + come * come - gone * gone)

    def _sum_up(self) -> None:
        while len(self._seen) > self.window:
            self._seen.popleft()
        values = [value for _, value in self._seen]
        self._shift = values[0] if values else 0.0
        apart = [value - self._shift for value in values]
        self._sums = (sum(apart), sum(each * each for each in apart))

    def _stands_out(self, value: float) -> str:
        count = len(self._seen)
        if count < self.warmup or not isfinite(value):  # NonFinite stops at those
            return ""
        total, squares = self._sums
        mean = self._shift + total / count
        if self.ratio is not None:
            if mean < 0 or value <= self.ratio * mean:
                return ""
            times = f"{value / mean:.3g}" if mean else "infinitely many"
            return f"loss {value:.4g} is {times} times the mean of the last {count}"
        spread = sqrt(max(0.0, (squares - total * total / count) / (count - 1)))
        assert self.z is not None
        if value <= mean + self.z * spread or value == mean:
            return ""
        far = (value - mean) / spread if spread else float("inf")
        return f"loss {value:.4g} lies {far:.3g} deviations above the mean of the last {count}, {mean:.4g}"

    def __repr__(self) -> str:
        return f"LossSpike(z={self.z:g})" if self.ratio is None else f"LossSpike(ratio={self.ratio:g})"

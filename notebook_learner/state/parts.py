"""The smaller parts of the state: adapters that give each part the same two methods.

A scheduler, early stopping and the loop capture themselves. The parts in this module need an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.amp.grad_scaler import GradScaler

from ..data.cursor import Cursor
from ..data.rng import Rng, capture_rng, check_rng, restore_rng
from ..errors import StateError
from ..metric import MetricGroup
from ..step.update import Update
from .state import clone


class RngPart:
    """The training's own random stream.

    While the loop is paused, cells of the notebook draw from the same generators. So the stream is saved at
    every stop, and put back at the next run. A pause then changes no bit, and what was sampled or plotted in
    it has no effect.
    """

    def __init__(self) -> None:
        self.running = False
        """Whether steps are being taken: then the stream is that of the live generators."""
        self._aside: Rng | None = None
        """None until the first run: until then the stream is the user's own."""
        self.apart = False
        """Whether the live generators are put back after each run. A fork does so: its parent may not have
        begun, and begins from them."""
        self._live: Rng | None = None

    def enter(self) -> None:
        """At the start of a run: the stream goes on where it stopped."""
        if self.apart:
            self._live = capture_rng()
        if self._aside is not None:
            restore_rng(self._aside)
        self.running = True

    def leave(self) -> None:
        """At the end of a run: save the stream."""
        self._aside = capture_rng()
        self.running = False
        if self._live is not None:
            restore_rng(self._live)
            self._live = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """For a run that leaves no trace: afterwards this stream and the live generators (which are the same
        until the first run) are what they were."""
        live, aside, running = capture_rng(), self._aside, self.running
        if not running:
            self.enter()
        try:
            yield
        finally:
            self.running, self._aside = running, aside
            restore_rng(live)

    def begin_with(self, state: Rng) -> None:
        """Set the stream of a seeded run, without a change to the live generators."""
        self._aside = state

    def check(self, state: Any, /) -> None:
        check_rng(state, "random stream")

    def capture(self) -> Any:
        return (capture_rng() if self.running or self._aside is None else self._aside).plain()

    def restore(self, state: Any, /) -> None:
        if self.running:
            restore_rng(Rng.of(state))
        else:
            self._aside = Rng.of(state)


class WindowPart:
    """Gradients in the middle of an accumulation window."""

    def __init__(self, update: Update) -> None:
        self.update = update

    def capture(self) -> Any:
        return self.update.capture(clone)

    def restore(self, state: Any, /) -> None:
        self.update.restore(state)


class CursorPart:
    """The place in a loader. Only the loop knows how many of the fetched batches became steps."""

    def __init__(self, cursor: Callable[[], Cursor], steps: Callable[[], int]) -> None:
        self.cursor = cursor
        self.steps = steps

    def check(self, state: Any, /) -> None:
        self.cursor().require(state)

    def capture(self) -> Any:
        return self.cursor().capture(self.steps())

    def restore(self, state: Any, /) -> None:
        self.cursor().restore(state)


class MetricsPart:
    """The epoch's sums so far."""

    def __init__(self, group: MetricGroup) -> None:
        self.group = group

    def check(self, state: Any, /) -> None:
        mine = self.group.stateful - set(self.group.logged)  # those come and go with what the steps log
        saved = set(state["metrics"]) - set(state["logged"])
        if mine != saved:
            raise StateError(
                f"the state has the metrics {', '.join(sorted(saved)) or 'none'}, this learner "
                f"{', '.join(sorted(mine)) or 'none'}; register the same ones to go on inside an epoch"
            )

    def own(self, state: Any) -> tuple[Any, str]:
        """A state for these metrics: the given one, or, if that is of others, that of a pass without a step,
        with words that say so."""
        try:
            self.check(state)
        except StateError as others:
            before = self.group.state_dict()
            self.group.reset()
            fresh = self.group.state_dict()
            self.group.load_state_dict(before)
            return fresh, str(others)
        return state, ""

    def capture(self) -> Any:
        return self.group.state_dict()

    def restore(self, state: Any, /) -> None:
        self.group.reset()
        self.group.load_state_dict(state)


class ScalerPart:
    """The loss scale of fp16 and its growth counter."""

    def __init__(self, scaler: GradScaler) -> None:
        self.scaler = scaler

    def capture(self) -> Any:
        return dict(self.scaler.state_dict())

    def restore(self, state: Mapping[str, Any], /) -> None:
        self.scaler.load_state_dict(dict(state))

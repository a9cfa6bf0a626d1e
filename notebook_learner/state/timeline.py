"""Keyframes: captured states in memory, from which rewind and recovery start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from time import perf_counter
from typing import Any

from ..event.position import Position
from .state import State

SHARE_OF_MEMORY = 0.25
PATIENCE = 30.0
"""Seconds of training between keyframes if nothing else requests one: an error costs at most this much."""
COST_RATIO = 200
"""...but at least this many times the time of one capture: half a percent of the time."""
MOST = 256
_FAR = 1 << 40


class Timeline:
    """States to go back to, spaced so that both memory and the steps to take again stay bounded."""

    def __init__(self, every: int | None = None, budget: int | None = None) -> None:
        self.every = every
        self.budget = budget
        self.keyframes: list[State] = []
        self.beside: Callable[[], int] = lambda: 0
        """The bytes that are kept along with them: an epoch's order."""
        self.wanted = True
        """Set before each run: the user may have changed something while the loop was paused."""
        self.beyond: Any = None
        """What was measured beyond the position that the run was rewound to, until it goes on from there."""
        self.too_large = 0
        """The size of a keyframe that did not fit the budget; 0 while keyframes fit."""
        self._cost = 0.0
        self._taken_at = perf_counter()
        self._counted: dict[int, Mapping[int, int]] = {}
        self._holders: Counter[int] = Counter()
        self._held = 0

    def due(self, position: Position) -> bool:
        """Whether the state at this boundary should be kept."""
        if self.wanted:
            return True
        if self.keyframes and self.keyframes[-1].position.key == position.key:
            return False
        if position.step == 0:
            return position.split == "train"
        if self.every is not None:
            return position.split == "train" and position.iteration % self.every == 0
        return perf_counter() - self._taken_at > max(PATIENCE, COST_RATIO * self._cost)

    def allowance(self, position: Position) -> int:
        """The number of steps until the next keyframe that is due by count."""
        if self.every is None or position.split != "train":
            return 1 << 40
        return self.every - position.iteration % self.every

    def add(self, state: State, seconds: float = 0.0, whole: bool = True) -> None:
        """Keep a state, in place of one at the same position; thin out what no longer fits.

        Args:
            state: the state to keep.
            seconds: how long it took to capture.
            whole: whether all of it is there already, so that it can be packed.
        """
        self.wanted, self.beyond = False, None
        self._cost = seconds
        self._taken_at = perf_counter()
        self.forget_from(state.position)
        if whole:
            state = state.compact(self.keyframes[-1] if self.keyframes else None)
        size = state.nbytes
        if size > self._budget():
            self.too_large = size
            self.keyframes.clear()
            return
        self.too_large = 0
        self.keyframes.append(state)
        while len(self.keyframes) > 1 and (len(self.keyframes) > MOST or self.nbytes > self._budget()):
            self._thin()

    def room_for(self, state: State) -> int:
        """How many more states of this size fit, in addition to one from which to go further back."""
        return 0 if self.too_large else min(MOST, self._budget() // max(1, state.nbytes)) - 1

    def leave(self, state: State) -> None:
        """Keep a state on the way back, unless the first keyframe, which reaches back furthest, had to be
        dropped."""
        state = state.compact(self.keyframes[-1] if self.keyframes else None)
        if self.keyframes and self.keyframes[0].nbytes + state.nbytes + self.beside() <= self._budget():
            self.keyframes.append(state)
            while len(self.keyframes) > MOST or self.nbytes > self._budget():
                self._thin(recent=min(8, len(self.keyframes) // 2))

    def nearest(self, position: Position) -> State | None:
        """Return the last keyframe at or before a position."""
        before = [state for state in self.keyframes if state.position <= position]
        return before[-1] if before else None

    def forget_from(self, position: Position) -> None:
        """Drop keyframes at or after a position: the steps that led to them are undone."""
        while self.keyframes and not self.keyframes[-1].position < position:  # keyframes are in order
            del self.keyframes[-1]

    def forget_after(self, position: Position) -> None:
        """Drop keyframes after a position."""
        self.keyframes = [state for state in self.keyframes if state.position <= position]

    def start_over(self, state: State) -> None:
        """The run jumped to a state that may come from another run: only that state is certain."""
        self.keyframes = [state]
        self.wanted, self.beyond = True, None

    @property
    def nbytes(self) -> int:
        """The memory of all keyframes, and of what is kept along with them; shared memory counts once."""
        now = {id(state.memory): state.memory for state in self.keyframes}
        for gone in self._counted.keys() - now.keys():
            for piece, size in self._counted.pop(gone).items():
                self._holders[piece] -= 1
                if not self._holders[piece]:
                    del self._holders[piece]
                    self._held -= size
        for new in now.keys() - self._counted.keys():
            self._counted[new] = now[new]
            for piece, size in now[new].items():
                self._holders[piece] += 1
                if self._holders[piece] == 1:
                    self._held += size
        return self._held + self.beside()

    def _budget(self) -> int:
        if self.budget is None:
            import psutil  # 10 ms, in the first run and not in `import notebook_learner`

            self.budget = int(SHARE_OF_MEMORY * psutil.virtual_memory().available)
        return self.budget

    def _thin(self, recent: int = 8) -> None:
        """Drop the keyframe that is needed least: among the older ones, the one with the closest neighbours.
        The last few are the steps that the user just took."""
        frames = self.keyframes
        if len(frames) <= recent + 1:
            del frames[0]
            return
        older = frames[: 1 - recent or None]
        at = [state.position.iteration for state in older]
        spans = [after - before for before, after in zip(at, at[2:], strict=False)]
        spans = [
            _FAR if _begins_anew(*pair) else span for span, pair in zip(spans, pairwise(older), strict=False)
        ]
        del frames[1 + spans.index(min(spans))]


def _begins_anew(before: State, after: State) -> bool:
    """Whether the shape is another one at the second keyframe: without it, the way to later steps would lead
    through the former shape."""
    one, other = (state.parts.get("shape") for state in (before, after))
    return getattr(one, "composition", None) is not getattr(other, "composition", None)

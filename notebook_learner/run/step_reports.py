"""The return values of the stepping methods: small values that are easy to read at the end of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..event.position import Position
from .compared import Difference


@dataclass(frozen=True, slots=True, repr=False)
class StepReport:
    """What `step`, `step_epoch` and `run_until` did.

    `values` are the metrics of the last step taken, and `split` is the split of that step. `why` says why
    it ended: "budget" (it took all requested steps), "breakpoint" (`reason` says which, and what it found),
    "stop" or "finished".

    >>> StepReport(Position(1, "train", 3, total=5), 2, "train", {"Loss": 0.25})
    2 steps taken, now at epoch 1, train, step 3 of 5; train: Loss 0.25 (last step)
    """

    position: Position
    steps: int
    split: str
    values: Mapping[str, float] = field(default_factory=dict)
    why: str = "budget"
    reason: str = ""

    def __str__(self) -> str:
        if self.why == "finished" and not self.steps:
            return f"no step taken: training is finished, at {self.position}; fit(epochs=n) trains n more"
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return (
            f"{_steps(self.steps)} taken, {self._now()} {self.position}"
            + (f"; {self.split}: {values} (last step)" if values else "")
            + (f"; {self.reason}" if self.reason else "")
        )

    def _now(self) -> str:
        return {
            "breakpoint": "stopped before the next update, at",
            "stop": "stopped at",
            "finished": "training is finished, at",
        }.get(self.why, "now at")

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class RewindReport:
    """What `rewind` did: from where, to where, and whether the replay gave the same bits.

    `replayed` steps were taken again from the nearest keyframe. `drift` is the largest difference between
    their values and the recorded ones, `differs_at` is the first step that differs, and `differs` says what
    differs there, and why.

    >>> RewindReport(Position(1, "train", 5), Position(1, "train", 3, total=5), 3, 0.0)
    rewound to epoch 1, train, step 3 of 5 (3 steps replayed, exact)
    """

    start: Position
    position: Position
    replayed: int
    drift: float
    differs_at: Position | None = None
    differs: Difference | None = None
    compared: bool = True
    """Whether the replayed steps have measured values, or there were none."""
    only_validation: bool = False
    """Whether all steps that were taken back are of validation: what is changed now, such as a learning rate,
    gives the same values there again."""

    @property
    def exact(self) -> bool:
        """Whether every replayed value equals the recorded one."""
        return self.drift == 0

    def __str__(self) -> str:
        first = "" if self.differs is None else f": {self.differs}"
        how = "exact" if self.exact else f"but the replay drifted by {self.drift:.3g}{first}"
        if not self.compared:
            how = "in which no value was measured to compare by"
        told = f"rewound to {self.position} ({_steps(self.replayed)} replayed, {how})"
        if not self.only_validation:
            return told
        return (
            f"{told}; only steps of validation were taken back, in which a new learning rate has no effect: "
            'rewind(n, of="train") counts training steps'
        )

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class HandedOver:
    """What `detach` did: the process that continues the run, its position, and the file with its output.

    >>> HandedOver(4242, Position(1, "train", 3, total=5), "runs/digits/detached.log")
    goes on in process 4242 from epoch 1, train, step 3 of 5; learner.take_back() takes it back
    """

    pid: int
    position: Position
    log: str

    def __str__(self) -> str:
        return f"goes on in process {self.pid} from {self.position}; learner.take_back() takes it back"

    __repr__ = __str__


@dataclass(frozen=True, slots=True, repr=False)
class RunTakenBack:
    """What `take_back` did: the process it took the run from, the learner's position, and in `told` what
    happened to that process, if this call did not stop it.

    >>> RunTakenBack(4242, Position(2, "train", 1, total=5))
    taken back from process 4242, now at epoch 2, train, step 1 of 5
    """

    pid: int
    position: Position
    told: str = ""

    def __str__(self) -> str:
        head = f"taken back from process {self.pid}"
        return f"{head}, {self.told + '; ' if self.told else ''}now at {self.position}"

    __repr__ = __str__


def ahead(target: Position, here: Position, num_epochs: int, finished: bool) -> str:
    """Why `rewind` does not go to a position ahead, and what to call instead.

    >>> ahead(Position(1, "train", 9), Position(1, "train", 3), 2, False)
    'rewind goes back, but epoch 1, train, step 9 lies ahead of epoch 1, train, step 3; run_until goes there'
    """
    goes = "run_until goes there"
    if finished or target.epoch > num_epochs:
        last = here.epoch if finished else num_epochs
        goes = f"training ends with epoch {last}, and fit(epochs=n) trains n more"
    return f"rewind goes back, but {target} lies ahead of {here}; {goes}"


def nothing_left(epoch: int, num_epochs: int, ended: bool) -> str:
    """The message of `fit` if training is over already, before `epoch`.

    >>> print(nothing_left(2, 1, ended=False).replace("; ", ";\\n"))
    nothing was left to do: its only epoch is over;
    fit(epochs=n) trains n more, or set learner.num_epochs = 2 and run fit() again
    """
    return (
        f"nothing was left to do: {why_over(epoch, num_epochs, ended)}; fit(epochs=n) trains n more, or set "
        f"learner.num_epochs = {2 * (epoch - 1)} and run fit() again"
    )


def why_over(epoch: int, num_epochs: int, ended: bool) -> str:
    """Why no step is left in a training that ended before `epoch`."""
    if ended:
        return f"early stopping ended it after epoch {epoch - 1} of {num_epochs}"
    return "its only epoch is over" if num_epochs == 1 else f"all {num_epochs} epochs are over"


def _steps(count: int) -> str:
    return f"{count:,} step" + ("" if count == 1 else "s")

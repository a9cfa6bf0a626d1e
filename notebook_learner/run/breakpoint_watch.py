"""Measures for the breakpoints in each block of steps, and decides at which step training stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..breakpoint import Asked, Breakpoint, Breakpoints, FromMetrics, Measured, Moment, Planned
from ..event import MetricBlock, Split, rows
from ..event.position import Position
from ..metric.tensors import to_host
from ..step.clipping import ClipByValue
from ..step.optimizer_calls import has_hooks
from ..step.optimizers import named_of
from ..step.step import TrainingStep
from .bounds import FAR
from .loop import Loop


@dataclass(frozen=True, slots=True)
class Hit:
    """A breakpoint that stopped the training."""

    breakpoint: Breakpoint
    position: Position
    """The boundary to stop at: before the step that hit, or after it in validation."""
    text: str
    """What the breakpoint found."""
    before: bool = True
    """Whether the step that hit is the next step."""
    moved: bool = True
    """Whether the run has gone past that boundary."""

    @property
    def name(self) -> str:
        """The name of the breakpoint."""
        return self.breakpoint.name

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.text else self.name


class Reached(Exception):
    """Leaves the loop at a breakpoint hit. Only the replica catches it."""

    def __init__(self, hit: Hit) -> None:
        super().__init__(str(hit))
        self.hit = hit


class Again(Exception):
    """Leaves the loop to take a block again, this time with a full look at each step."""

    def __init__(self, start: Position, last: int, doubted: Sequence[_Series]) -> None:
        super().__init__(str(start))
        self.start = start
        self.last = last
        """The last step of the block."""
        self.conditions = [each.condition for each in doubted]
        """The series that noticed something in it."""
        self.names = ", ".join([each.breakpoint.name for each in doubted])

    def has_passed(self, block: MetricBlock) -> bool:
        """Whether the block was taken again up to its end."""
        return (block.split, block.epoch) == ("train", self.start.epoch) and block.last >= self.last

    def passed_in_vain(self) -> str:
        """The message to the user if no step of it hit."""
        steps = f"steps {self.start.step + 1} to {self.last} of epoch {self.start.epoch}"
        return (
            f"{self.names}: not every value was finite in {steps}. The run took these steps again to find "
            "the value; this time all were finite, and the training goes on from there. "
            "What made the difference is not part of the training's state: code or data with a counter or "
            "random numbers of its own, or the device. From here on this run looks at each step"
        )


class _Series:
    """What one condition measured since the last block was judged."""

    def __init__(self, breakpoint: Breakpoint, condition: Measured, glances: bool) -> None:
        self.breakpoint, self.condition, self.glances = breakpoint, condition, glances
        self.measure = condition.glance if glances else condition.measure
        self.steps: list[int] = []
        self.values: list[Tensor | float] = []
        self.traced: list[Tensor | float] = []
        """What is finite only if no step with a quick look hit."""
        self.hint: int | None = None
        """The steps of quick looks that may have hit, but cannot be taken again."""

    def add(self, step: int, value: Tensor | float | None) -> None:
        if value is not None:
            self.steps.append(step)
            self.values.append(value)

    @property
    def on_device(self) -> bool:
        """Whether to read its values is to wait."""
        return bool(self.values) and isinstance(last := self.values[-1], Tensor) and not last.is_cpu

    def look_back(self, moment: Moment, open_window: bool) -> None:
        """At the end of a block with quick looks: note the first step that may have hit."""
        glanced, traced = to_host([self.values, self.traced])
        self.traced = []
        wrong = np.flatnonzero(~np.isfinite(glanced))
        if len(wrong):
            self.hint = int(wrong[0])
        elif len(traced) and np.isfinite(traced).all():
            return
        elif self.condition.traces(moment, open_window):
            self.hint = len(glanced) - 1

    def keep(self, block: MetricBlock) -> None:
        """Keep only the values of the block: the update that closes a pass comes after its last block."""
        if block.split != "train" or (self.steps and not block.first <= self.steps[0] <= block.last):
            self.clear()

    def clear(self) -> None:
        self.steps, self.values, self.traced, self.hint = [], [], [], None


class BreakpointWatch:
    """Measures for the breakpoints that are on, and judges each block before any listener gets it."""

    def __init__(self, loop: Loop, way_back: Callable[[Position], bool], warn: Callable[[str], None]) -> None:
        self.loop = loop
        self.way_back = way_back
        self.warn = warn
        self.breakpoints = Breakpoints()
        self.stood: tuple[int, int, int] | None = None
        """The position after the last hit. Going on from there takes that step, for all conditions."""
        self.late: Hit | None = None
        """A hit that the training cannot go back to: the run stops at the next boundary."""
        self.careful = False
        """Whether every step gets a full look, for the rest of this run."""
        self._doubt: Again | None = None
        self._moment: Moment | None = None
        self._exempt: tuple[int, int, int] | None = None
        self._seen_changes = -1
        self._armed: list[Breakpoint] = []
        self._by_stage: dict[str, list[_Series]] = {}
        self._asked: list[tuple[Breakpoint, Asked]] = []

    # A run -------------------------------------------------------------------------------------------

    @contextmanager
    def during(self) -> Iterator[None]:
        """Watch while the loop runs. If no breakpoint is on, this adds nothing to a step."""
        self._exempt = self.stood if self.stood == self.loop.position.key else None
        self.late = None
        self._seen_changes = -1  # the first boundary arms what is on
        try:
            yield
        except (Reached, Again):
            raise
        except Exception as error:
            self._judge_before(error)
            raise
        finally:
            self._disarm()

    def refresh(self) -> None:
        """At a boundary: arm again if a breakpoint was set, removed or switched."""
        if self._seen_changes == self.breakpoints.changes:
            return
        self._seen_changes = self.breakpoints.changes
        self._disarm()
        self._armed = [each for each in self.breakpoints if each.on]
        if self._armed:
            self._arm()

    def look_again(self) -> None:
        """At the next boundary, arm again: layers or groups have come or gone."""
        self._seen_changes = -1

    def take_again(self, doubt: Again) -> None:
        """Prepare for a block that gets a full look, as do all blocks after it. The run stands before it."""
        self.forget_after(doubt.start)
        self.careful, self._doubt = True, doubt

    def forget_after(self, position: Position) -> None:
        """The run went to another position."""
        self.stood = self._doubt = None
        for each in self.breakpoints:
            if isinstance(each.condition, Measured):
                each.condition.forget_after(position.iteration)

    def _arm(self) -> None:
        update = self.loop.update
        parameters = update.parameters
        moment = Moment(
            update.model,
            update.optimizer,
            parameters,
            scaled=update.scaler is not None,
            clipped=any(isinstance(clip, ClipByValue) for clip in update.clips),
            in_parts=self.loop.ranks is not None and self.loop.ranks.in_parts,
            repaired=update.drives or any(map(has_hooks, named_of(update.optimizer).values())),
        )
        self._moment = moment
        glances = not self.careful and self.way_back(self.loop.position)
        series = [
            _Series(b, b.condition, glances and b.condition.lasts(moment))
            for b in self._armed
            if isinstance(b.condition, Measured)
        ]
        for each in series:
            each.condition.attach(update.model)
        self._by_stage = {
            stage: [each for each in series if each.condition.stage == stage]
            for stage in ("backward", "update", "after")
        }
        self._asked = [(b, b.condition) for b in self._armed if isinstance(b.condition, Asked)]
        self.loop.watch = self
        self._look(True)

    def _disarm(self) -> None:
        for each in self._series:
            each.condition.detach()
        self._armed, self._by_stage, self._asked, self._moment = [], {}, [], None
        self.loop.watch = None
        self._look(False)

    def _look(self, wanted: bool) -> None:
        train = self.loop.passes.get("train")
        if train is None:
            return
        assert isinstance(train.step, TrainingStep)
        wanted &= bool(self._series or self._asked)
        train.step.look = self if wanted else None
        at_update = self._by_stage.get("update") or self._by_stage.get("after")
        self.loop.update.look = self.before_update if wanted and at_update else None

    @property
    def _series(self) -> list[_Series]:
        return [each for stage in self._by_stage.values() for each in stage]

    # In a step ---------------------------------------------------------------------------------------

    def before_step(self, batch: Any) -> None:
        """A step begins: it may write to the weights itself."""
        moment, loop = self._moment, self.loop
        assert moment is not None
        moment.batch = batch
        moment.epoch, moment.step = loop.epoch, loop.done + 1
        moment.iteration = loop.trained + moment.step

    def after_backward(self, batch: Any, output: Any) -> None:
        """The step's own gradients are ready."""
        moment = self._moment
        assert moment is not None
        moment.output = output
        for each in self._by_stage["backward"]:
            each.add(moment.step, each.measure(moment))
        if self._asked:
            self._ask(moment)

    def before_update(self) -> None:
        """The gradients are those that the optimizer will get."""
        moment = self._moment
        assert moment is not None
        for each in self._by_stage["update"]:
            each.add(moment.step, each.measure(moment))
        for each in self._by_stage["after"]:
            each.condition.prepare(moment)

    def after_step(self) -> None:
        """The step is done, and its update is applied if it had one."""
        moment = self._moment
        assert moment is not None
        for each in self._by_stage["after"]:
            each.add(moment.step, each.measure(moment))
        moment.batch = moment.output = None  # free them before the next step's peak memory

    def _ask(self, moment: Moment) -> None:
        if self._is_exempt(moment.step):
            return
        for breakpoint, condition in self._asked:
            answer = condition.asks(moment)
            if answer:
                raise Reached(self._hit(breakpoint, moment.step, answer if isinstance(answer, str) else ""))

    # At a boundary -----------------------------------------------------------------------------------

    def allowance(self, position: Position) -> int:
        """How many steps may be taken before a planned stop. Raises Reached at that stop."""
        if position.split != "train" or self.loop.finished:
            return FAR
        if position.step == position.total:
            return 1  # the next training step belongs to the next epoch
        nearest = FAR
        for each in self._armed:
            if isinstance(each.condition, Planned):
                left = each.condition.left(position.epoch, position.step, position.iteration)
                if left == 0 and position.key != self._exempt:
                    raise Reached(replace(self._hit(each, position.step + 1, ""), moved=False))
                # If this step is exempt, the step after it may be planned too.
                nearest = min(nearest, max(1, FAR if left is None else left))
        return nearest

    def unread(self) -> list[list[Any]]:
        """The scalars that `judge` reads: on a device, each reading of its own would wait once more."""
        moment, lists = self._moment, list[list[Any]]()
        for each in self._series:
            if each.glances and moment is not None and each.on_device:
                trace = each.condition._trace(moment, self.loop.update.count > 0)
                each.traced = [] if trace is None else [trace]
            lists += [each.values, each.traced]
        return lists

    def judge(self, block: MetricBlock) -> None:
        """Check a block before the listeners get it. Raises Reached if one of its steps hit and the run can
        go back, and Again if that is not certain yet."""
        if block.split == "train":
            self._require_certainty(block)
        hits = [*self._measured(block), *self._of_metrics(block)]
        if self._doubt is not None and self._doubt.has_passed(block):
            self._settle_doubt(not hits)
        if not hits:
            return
        hit = min(hits, key=lambda each: each.position.key)
        if self.way_back(hit.position):
            raise Reached(hit)
        step = hit.position.step + hit.before
        lost = f"step {step}; noticed only after step {block.last}, and no kept state lies before it"
        self.late = replace(hit, text=f"{hit.text} ({lost})".lstrip())

    def _settle_doubt(self, in_vain: bool) -> None:
        doubt, moment, self._doubt = self._doubt, self._moment, None
        assert doubt is not None and moment is not None
        open_window = self.loop.update.count > 0
        # Some models have infinite weights on purpose.
        if in_vain and not any(each.traces(moment, open_window) for each in doubt.conditions):
            self.warn(doubt.passed_in_vain())

    def _judge_before(self, error: Exception) -> None:
        """A step failed. If an earlier step of the block hit, stop there, because it is the cause."""
        loop = self.loop
        if loop.split != "train" or not any(each.values for each in self._series):
            return
        first = loop.done - loop.unread + 1
        block = MetricBlock(loop.epoch, "train", first, loop.unread, loop.iteration, {}, {}, 0.0)
        self._require_certainty(block)
        hits = [hit for hit in self._measured(block) if hit.position.step < loop.done]
        if hits and self.way_back(hits[0].position):
            raise Reached(min(hits, key=lambda each: each.position.key)) from error

    def _require_certainty(self, block: MetricBlock) -> None:
        """Raise Again if a step with only a quick look may have hit."""
        moment, here = self._moment, self.loop.position
        for each in self._series:
            each.keep(block)
            if each.glances and each.values and moment is not None:
                each.look_back(moment, self.loop.update.count > 0)
        start = here.at(block.first - 1, block.iteration - block.count)
        doubted = [each for each in self._series if each.hint is not None]
        if doubted and self.way_back(start):
            raise Again(start, block.last, doubted)

    def _measured(self, block: MetricBlock) -> list[Hit]:
        for each in self._series:
            each.keep(block)
        series = [each for each in self._series if each.values]
        hits = [hit for each in series if each.glances and (hit := self._hinted(each))]
        full = [each for each in series if not each.glances]
        offset = block.iteration - block.last
        for each, values in zip(full, to_host([each.values for each in full]), strict=True):
            steps = each.steps
            each.clear()
            if self._is_exempt(steps[0]):
                steps, values = steps[1:], values[1:]
            found = each.condition.judge([step + offset for step in steps], values)
            if found is not None:
                hits.append(self._hit(each.breakpoint, steps[found.at], found.text))
        return hits

    def _hinted(self, series: _Series) -> Hit | None:
        """The hit of a series that had only quick looks, and that cannot be taken again."""
        hint, steps = series.hint, series.steps
        series.clear()
        if hint is None or self._is_exempt(steps[hint]):
            return None
        text = f"{series.condition.says(float('nan'))}, in this step or one of the {hint} before it"
        return self._hit(series.breakpoint, steps[hint], text)

    def _of_metrics(self, block: MetricBlock) -> list[Hit]:
        if block.split == "train" and self._is_exempt(block.first):
            block = rows(block, 1, block.count)
        hits = []
        for each in self._armed:
            if isinstance(each.condition, FromMetrics) and block.count:
                found = each.condition.judge(block.split, block.columns)
                if found is not None:
                    hits.append(self._hit(each, block.first + found.at, found.text, block.split))
        return hits

    def _is_exempt(self, step: int) -> bool:
        return self._exempt == Position(self.loop.epoch, "train", step - 1).key

    def _hit(self, breakpoint: Breakpoint, step: int, text: str, split: Split = "train") -> Hit:
        loop, before = self.loop, split == "train"
        stand = step - 1 if before else step
        iteration = loop.trained + (stand if before else 0)
        total = loop.passes[split].cursor.total
        return Hit(breakpoint, Position(loop.epoch, split, stand, iteration, total), text, before)

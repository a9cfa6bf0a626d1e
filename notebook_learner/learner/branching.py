"""The lines that a run has left: seen, and gone to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..artifacts.branches import ORIGIN, Branches, RecordedBranch, branches_in, own_passes
from ..artifacts.timeline import TimelineMark, TimelineTable
from ..errors import StateError
from ..event.position import Position, after_training_step
from ..logger.branches import Branch, chain_to, read_branches
from ..run.bounds import as_position
from ..run.replay import LeftLine
from ..run.step_reports import RewindReport
from ..state.checkpoint_files import Lineage
from ..widget.branch_lines import LeftBranches
from .core import LearnerCore


def branches_of(learner: LearnerCore) -> Branches:
    """The branches in the run's directory, with what this learner has measured on its own line."""
    with learner._driver.held():
        return _found(learner)


def _found(learner: LearnerCore) -> Branches:
    opened, forks = learner._opened, learner._supplies.recipe.forks()
    origin = opened.settings.get(ORIGIN, "")
    record = learner.history.snapshot()
    return branches_in(opened.directory, opened.metrics, record, learner.position, forks, origin)


def left_by(learner: LearnerCore) -> LeftBranches:
    """The branches in the run's directory for a panel, which reads them while the run trains."""
    directory, infos = learner._opened.directory, learner._opened.metrics
    known = {each.name: each for each in read_branches(directory)}

    def again(branch: Branch) -> int:
        first, way = chain_to(branch.name, known)[0], Lineage.of({"lineage": branch.lineage})
        kept = [each.position for each in [*learner._replica.timeline.keyframes]]
        edited = _is_edited(learner, first)
        near = [at.iteration for at in kept if at < first.begin or (at <= first.begin and not edited)]
        if not near:  # as the way there: from memory, or else from the disk
            near = [info.iteration for info in learner._replica.saving.saved()[0] if way.passes(info)]
        last = branch.end.iteration
        return last - max((each for each in near if each <= last), default=0)

    return LeftBranches([*known.values()], lambda branch: own_passes(directory, branch, infos), again)


def timeline_of(learner: LearnerCore) -> TimelineTable:
    """What happened to the run, from its beginning on."""
    from ..artifacts import Artifacts

    with learner._driver.held():
        marks: Sequence[TimelineMark] = ()
        if learner._announced:
            learner._replica.saving.close()
            marks = Artifacts(learner._opened.directory).timeline
        own = [TimelineMark(*each[:4], 0.0, each.text) for each in learner.history.marks]
        return TimelineTable(marks or own)


def go_to(learner: LearnerCore, branch: Any, step: Any) -> RewindReport:
    """Go to a step of a branch, by its nearest state and the steps from there."""
    if learner._announced:
        learner._enter()
    wanted, chain = _wanted(learner, branch.name if isinstance(branch, RecordedBranch) else str(branch))
    line = _line(learner, wanted, chain)
    with learner._supplies.branches.going_through(chain[0]):
        report = learner._replica.rewind(_target(learner, wanted, step), line)
    reached = learner._replica.loop.position
    for name, end, shared in _ways(chain)[1:]:
        learner._supplies.recipe.adopt(name, min(end, reached), shared)
    learner._supplies.branches.adopt([each.name for each in chain], reached, wanted.record)
    learner._settle()
    return report


def line_of(learner: LearnerCore, name: str) -> LeftLine | None:
    """The way to a branch's end; None of the run's own line, which has no name."""
    return _line(learner, *_wanted(learner, name)) if name else None


def _wanted(learner: LearnerCore, name: str) -> tuple[RecordedBranch, list[Branch]]:
    """A branch, and all on the way to it."""
    found = _found(learner)
    wanted = next((each for each in found if each.name == name), None)
    if wanted is None:
        names = ", ".join(each.name for each in found) or "none"
        raise StateError(f"there is no branch {name!r} of this run; there are: {names}")
    return wanted, chain_to(name, {each.name: each.branch for each in found})


def _line(learner: LearnerCore, wanted: RecordedBranch, chain: Sequence[Branch]) -> LeftLine:
    way = Lineage.of({"lineage": wanted.branch.lineage})
    by_hand = learner._supplies.recipe.by_hand(_ways(chain))
    return LeftLine(wanted.record, way, chain[0].begin, _is_edited(learner, chain[0]), by_hand)


def _is_edited(learner: LearnerCore, first: Branch) -> bool:
    """Whether something was changed by hand where a branch leaves, after the run had left it."""
    return bool({*learner._supplies.recipe.at(first.begin)} - {*first.shared})


def _target(learner: LearnerCore, branch: RecordedBranch, step: Any) -> Position:
    last = _last_of(learner, branch)
    if step is None:
        return last
    target = after_training_step(branch.record, step) if type(step) is int else as_position(step)
    if target > last:
        raise ValueError(
            f"branch {branch.name} ends at {branch.end}, before {target}; go to its end and train on"
        )
    return target


def _last_of(learner: LearnerCore, branch: RecordedBranch) -> Position:
    """The last place on its way: where it was left, or behind the epoch that had ended there."""
    part, end = branch.record[-1], branch.end
    ended = part.finals is not None and (part.split == "valid" or "valid" not in learner._replica.loop.passes)
    return Position(end.epoch + 1, "train", 0, end.iteration) if ended else end


def _ways(chain: Sequence[Branch]) -> list[tuple[str, Position, Sequence[str] | None]]:
    """The line that the run is on, and each branch, with the place where the way leaves it, and the changes
    by hand at that very place that are on the way."""
    ends = [*((each.begin, each.shared) for each in chain), (chain[-1].end, None)]
    return [(name, *end) for name, end in zip(["", *(each.name for each in chain)], ends, strict=True)]

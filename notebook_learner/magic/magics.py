"""The magics: they parse what the user writes, and call the code that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from IPython.core.error import UsageError
from IPython.core.magic import Magics

from ..errors import a_kind
from ..event import Split
from ..learner.learner import Learner
from ..trial.reload_code import redefined
from .cell_body import compiled, source_of
from .cell_step import CellStep
from .options import (
    BODY,
    COUNT,
    DIRECTORY,
    EXPORT,
    LEARNER,
    PLACE,
    RANK,
    RUNNING,
    at_least_one,
    dry,
    magic,
    magics,
    pause_background,
    position_or_count,
    put_in,
    read,
    run,
    running,
    unquoted,
)


@magics
class TrainingMagics(Magics):
    """`%%train` and the other magics, for the learners of this notebook."""

    shell: Any

    # A cell is the step ------------------------------------------------------------------------------

    @magic("%%train", RUNNING, BODY, EXPORT)
    def train_cell(self, line: str, cell: str) -> Any:
        """Train with this cell: its body is the training step.

        The body can use `model`, `batch` (on the model's device), `learner`, `epoch` (from 1) and `step` (the
        number of steps of this epoch before this one). It also sees every name of the notebook. It must
        assign a scalar tensor to `loss`. If it also assigns `output`, metrics such as Accuracy read that and
        the targets. The targets are the batch's second part, under any name (`x, y = batch`, `y =
        batch["label"]`), or the value of `target` or `targets`. learner.log("name", value) makes a metric of
        any other number. The learner does the rest: zero_grad, backward, optimizer, scheduler.

        The body may also be that of a loop of yours, as it stands: if it calls `optimizer.step()`, it runs
        zero_grad, backward and clipping itself, too, and needs no `loss`.

        The names that the body assigns are the step's own. When the run ends or pauses, the notebook gets
        what the last step assigned to them, without graphs; with --no-export it does not. A name that the
        body reads before it assigns it (`hidden`, `count += 1`) has the value of the step before, at first
        the notebook's, and goes back with a rewind. `learner.locals` holds the values of the last step.

        If you run an edited cell again while training is paused (or runs in the background), training goes on
        from that step with the new body.

        Example::

          %%train --epochs 3
          x, y = batch
          output = model(x)
          loss = F.cross_entropy(output, y)
        """
        __tracebackhide__ = True
        given = read(self.train_cell, line)
        options = running(given)
        learner = self._learner(given.learner)
        step = self._step(learner, "train", line, cell, given.output)
        if options.dry:
            return self._dry(learner, step, options)
        in_background = put_in(learner, "train", step)
        if in_background and options.plain and not options.export:
            return learner.start()
        return run(learner, options, self.shell.user_ns)

    @magic("%%valid", LEARNER, BODY)
    def valid_cell(self, line: str, cell: str) -> None:
        """Validate with this cell: its body is the validation step.

        It is like `%%train`, but without gradients and in eval mode. The cell itself runs nothing yet: the
        next `%%train`, `%train` or `fit` uses it at the end of each epoch. It assigns `loss`, or `output` and
        the targets.

        Example::

          %%valid
          x, y = batch
          output = model(x)
          loss = F.cross_entropy(output, y)
        """
        given = read(self.valid_cell, line)
        learner = self._learner(given.learner)
        if put_in(learner, "valid", self._step(learner, "valid", line, cell, given.output)):
            learner.start()

    # Run ---------------------------------------------------------------------------------------------

    @magic("%train", RUNNING, EXPORT)
    def train_line(self, line: str) -> Any:
        """Go on training with the step in use, by default to the last epoch."""
        __tracebackhide__ = True
        given = read(self.train_line, line)
        options = running(given)
        learner = self._learner(given.learner)
        if options.dry:
            return self._dry(learner, None, options)
        return run(learner, options, self.shell.user_ns)

    @magic("%step", COUNT)
    def step(self, line: str) -> Any:
        """Take the next step, or the next N steps, of training or of validation, and show a report.

        `%step`, `%step 10`, `%step 10 learner`
        """
        __tracebackhide__ = True
        learner, count = self._learner_and(read(self.step, line).what, "%step")
        return learner.step(at_least_one("%step", count or "1"))

    @magic("%rewind", PLACE)
    def rewind(self, line: str) -> Any:
        """Take back one step or N steps, or go back to a position. The same steps then give the same bits
        again.

        `%rewind`, `%rewind 3`, `%rewind 2:117` (epoch 2, step 117), `%rewind 2:valid:0`
        """
        learner, where = self._learner_and(read(self.rewind, line).what, "%rewind")
        target = position_or_count(where or "1")
        return learner.rewind(target) if isinstance(target, int) else learner.rewind(to=target)

    # Control -----------------------------------------------------------------------------------------

    @magic("%pause", LEARNER)
    def pause(self, line: str) -> None:
        """Pause background training; when the cell ends, it stands between two steps."""
        learner = self._learner(read(self.pause, line).learner)
        learner.pause()
        self._tell(learner)

    @magic("%resume", LEARNER)
    def resume(self, line: str) -> None:
        """Go on after a pause, in the background."""
        self._learner(read(self.resume, line).learner).resume()

    @magic("%stop", LEARNER)
    def stop(self, line: str) -> None:
        """End background training at its next step; `%train` can go on from there."""
        learner = self._learner(read(self.stop, line).learner)
        learner.stop()
        self._tell(learner)

    # Look and branch ---------------------------------------------------------------------------------

    @magic("%inspect", RANK, LEARNER)
    def inspect(self, line: str) -> Any:
        """Inspect the current step: its batch, every layer, gradients and updates. It changes nothing."""
        given = read(self.inspect, line)
        return self._learner(given.learner).inspect(rank=given.rank)

    @magic("%fork", DIRECTORY, LEARNER)
    def fork(self, line: str) -> Any:
        """Make a second learner that goes on from this step in its own folder: `other = %fork runs/other`."""
        given = read(self.fork, line)
        learner = self._learner(given.learner)
        return learner.fork(unquoted(given.directory))

    # Parsing -----------------------------------------------------------------------------------------

    def _learner(self, name: str | None) -> Learner:
        return find_learner(self.shell.user_ns, name)

    def _learner_and(self, words: list[str], magic: str) -> tuple[Learner, str | None]:
        """Read a name and a number, in any order; each may be missing."""
        names = [word for word in words if word.isidentifier()]
        others = [word for word in words if word not in names]
        if len(names) > 1 or len(others) > 1:
            raise UsageError(f"{magic} takes one number and one learner's name, not {' '.join(words)}")
        return self._learner(names[0] if names else None), others[0] if others else None

    def _step(self, learner: Learner, split: Split, line: str, cell: str, output: str | None) -> CellStep:
        body = compiled(self.shell, source_of(self.shell, split, line, cell), split)
        return CellStep(learner, body, output)

    def _dry(self, learner: Learner, step: CellStep | None, options: Any) -> Any:
        __tracebackhide__ = True
        paused = pause_background(learner)
        try:
            return dry(learner, step, options, self.shell.user_ns)
        finally:
            if paused:
                learner.start()

    def _tell(self, learner: Learner) -> None:
        several = len(learners_in(self.shell.user_ns)) > 1
        name = next((name for name, each in self.shell.user_ns.items() if each is learner), "learner")
        print(f"{name + ': ' if several else ''}{learner.status} at {learner.position}")


def learners_in(names: Mapping[str, Any]) -> dict[str, Learner]:
    """The notebook's learners by name. One with two names counts once; names like `_` are IPython's
    history."""
    found: dict[int, tuple[str, Learner]] = {}
    for name, value in list(names.items()):
        if isinstance(value, Learner) and not name.startswith("_"):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def find_learner(names: Mapping[str, Any], name: str | None) -> Learner:
    """The learner of this name, or the only one.

    Raises:
        UsageError: no learner has that name, or there is no learner, or there are several and no name is
            given.
    """
    there = learners_in(names)
    if name is not None:
        value = names.get(name)
        if isinstance(value, Learner):
            return value
        wrong = f"`{name}` is {a_kind(value)}, no learner" if name in names else f"there is no `{name}`"
        raise UsageError(f"{wrong}; {_which(there)}")
    if len(there) != 1:
        raise UsageError(
            _which(there) if not there else f"{_which(there)}; say which one: %%train {next(iter(there))}"
        )
    return next(iter(there.values()))


def _which(there: Mapping[str, Learner]) -> str:
    if not there:
        return "the notebook has no learner yet; build one: learner = LearnerBuilder('runs/one').build(...)"
    listed = " and ".join(there) if len(there) == 2 else ", ".join(there)
    return f"the notebook's learner{' is' if len(there) == 1 else 's are'} {listed}"


class Offer:
    """Looks at the notebook's learners after each cell. Each new class is offered once."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._told: WeakSet[type] = WeakSet()

    def after_cell(self, *result: Any) -> None:
        """Called by the shell."""
        for name, learner in learners_in(self.shell.user_ns).items():
            new = [each for each in redefined(learner.model, self.shell.user_ns) if each not in self._told]
            if new:
                self._told.update(new)
                classes = " and ".join(sorted({each.__name__ for each in new}))
                print(
                    f"{classes} changed: {name}.tools.reload_code() gives the model in training the new "
                    "methods"
                )

"""Every error a user can meet, in one tree.

    Exception
    └── NotebookLearnerError
        ├── ConfigurationError    mistakes in a LearnerBuilder, all of them at once
        ├── StepError             what a step returned cannot be trained on
        │   ├── LossError         the loss is no scalar, no tensor, or needs no gradient
        │   └── OutputError       a metric does not find what it reads in the output
        ├── DataError             a loader yields nothing, or cannot be walked again
        ├── StateError            a captured state does not fit this learner
        ├── BusyError             two drivers at once, or a question only a paused learner answers
        └── LoggerError           a metric logger failed; what it could not write is kept
    KeyboardInterrupt
    └── Paused                    a blocking verb ended because somebody pressed pause

A message says what was given, why it cannot be, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Sequence


class NotebookLearnerError(Exception):
    """The root: `except NotebookLearnerError` catches everything this package raises on purpose."""


class ConfigurationError(NotebookLearnerError, ValueError):
    """A `LearnerBuilder` that cannot be built, or a training that cannot begin.

    Attributes:
        mistakes: one line each, every mistake of the configuration.
    """

    def __init__(self, mistakes: Sequence[str], what: str = "this learner cannot be built") -> None:
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = what + (":" if count == 1 else f", for {count} reasons:")
        super().__init__("\n".join([head, *(f"  - {mistake}" for mistake in self.mistakes)]))


class StepError(NotebookLearnerError):
    """A `train_step` or `valid_step` returned something the learner cannot go on with."""


class LossError(StepError, ValueError):
    """The loss is not a scalar tensor that requires a gradient."""


class OutputError(StepError, AttributeError):
    """A metric needs a field that the step's output lacks."""


class DataError(NotebookLearnerError):
    """A loader that yields nothing, or that cannot be brought back to a position."""


class StateError(NotebookLearnerError):
    """A captured state that does not fit the learner it is restored into."""


class BusyError(NotebookLearnerError, RuntimeError):
    """The learner is being driven by someone else right now."""


class LoggerError(NotebookLearnerError):
    """A metric logger failed. Training stands at a step boundary; nothing before it is lost."""


class Paused(KeyboardInterrupt):
    """Ends a blocking `fit` when Pause, the interrupt button or Ctrl-C was used.

    It is a KeyboardInterrupt, so that "Run all cells" stops here and an `except Exception` around
    `fit` (a hyper-parameter search, for one) does not swallow a user's wish to stop.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"paused at {where}; fit() goes on from here, learner.step() takes one step")

    def _render_traceback_(self) -> list[str]:
        """Show one quiet line in IPython, which asks an exception for this before drawing it."""
        return [str(self)]

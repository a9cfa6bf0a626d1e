"""After a cell that defined the class of a live model again: one line that says what the user can do."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ..trial.reload_code import redefined
from .find_learner import learners_in


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

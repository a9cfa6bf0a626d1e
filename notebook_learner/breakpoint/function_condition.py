"""Any function as a condition."""

from __future__ import annotations

from collections.abc import Callable

from .base import Asked, Moment


class When(Asked):
    """Stop when a function of the moment returns True or a reason. `learner.breakpoints.add(lambda m: ...)`
    makes one.

    The function is called at every training step, after backward and before the update. Reading a tensor
    (`m.loss > 5`) makes the training wait for the device at every step. The other conditions do not wait.
    """

    def __init__(self, function: Callable[[Moment], bool | str]) -> None:
        self.function = function

    def asks(self, moment: Moment) -> bool | str:
        answer = self.function(moment)
        return answer if isinstance(answer, str) else bool(answer)

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return "a function" if name == "<lambda>" else name

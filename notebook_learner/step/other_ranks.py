"""What an update asks of the other ranks, which have parts of the same batches."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn


class Driven(Protocol):
    """The other ranks, in steps that run backward and the optimizers themselves."""

    @property
    def attends(self) -> bool:
        """Whether gradients become those of all ranks as a backward pass ends."""

    @property
    def runs(self) -> bool:
        """Whether a backward pass runs, whose gradients are still this rank's own."""

    def attend(self, parameters: list[nn.Parameter], weight: float, *, keeps: bool) -> None:
        """Average the gradients of the user's backward passes from here on."""

    def rest(self, *, own: bool = False) -> None:
        """Leave later backward passes alone; `own` puts this rank's own gradients back."""

    def mean(self, value: Any) -> Any:
        """The mean of a loss over all samples."""

    def agree(self, calls: int) -> None:
        """At a step's end: raise a StepError if a rank has called the optimizers in another way."""


class Together(Protocol):
    """The other ranks, which have parts of the same batches."""

    reference: float
    """The weight that all ranks divide theirs by: a power of two, so that it changes no bit."""

    @property
    def driven(self) -> Driven | None:
        """For steps that drive themselves; None if these ranks cannot take them."""

    def coming(self, parameters: list[nn.Parameter], total: Tensor | float) -> None:
        """Announce that the next backward pass closes a window of this weight. Gradients may be sent while it
        runs."""

    def add_up(self, parameters: list[nn.Parameter], total: Tensor | float, mean: bool) -> Tensor:
        """Make each gradient the sum of all ranks', or their mean, and return the sum of the weights."""

    def made(self) -> None:
        """Report that a backward pass is over."""

    def moved(self) -> None:
        """Report that the optimizer has changed the weights."""

    def norm(self, norm: Tensor) -> Tensor:
        """Return the norm of all gradients, given the norm of the gradients here."""

    def adopt(self) -> None:
        """Accept gradients that a step has computed itself.

        Raises:
            StepError: they cannot be summed with the weights that they need.
        """

"""Train and eval mode, module by module: `model.train()` alone would thaw what a user froze."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from .position import Split


class Modes:
    """Switches models between splits, remembering which of their modules train.

    A model that is in eval mode when training starts is set to train as a whole; after that, modules
    whose mode was changed by hand (a frozen BatchNorm) keep it through validation and back.
    """

    def __init__(self, model: nn.Module, validated: nn.Module) -> None:
        self.model = model
        self.validated = validated
        """The model that validation runs: the same one, or its moving average."""
        self._training: dict[nn.Module, bool] | None = None

    def enter(self, split: Split) -> None:
        """Put the model into the mode of this split."""
        if split == "train":
            self._enter_training()
        else:
            self.remember()
            self.validated.eval()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever is entered inside, every module comes out in the mode that it had."""
        remembered = self._training
        modes = {
            module: module.training for root in (self.model, self.validated) for module in root.modules()
        }
        try:
            yield
        finally:
            self._training = remembered
            for module, training in modes.items():
                module.training = training

    def remember(self) -> None:
        """Note which modules train, while the model is in training mode."""
        if self.model.training:
            self._training = {module: module.training for module in self.model.modules()}

    def _enter_training(self) -> None:
        if self.model.training:
            return
        if self._training is None:
            self.model.train()
            return
        for module, training in self._training.items():
            module.training = training

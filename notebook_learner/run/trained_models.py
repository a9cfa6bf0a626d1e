"""Remembers which models a learner of this process has trained, to warn if a new learner trains one again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..event import Notice
from ..state.device_copies import copy_to_host

_VALUES = 16
"""How many values of a parameter are compared."""


@dataclass(frozen=True)
class _Trained:
    directory: str
    sample: tuple[Tensor, ...]


_models: WeakKeyDictionary[nn.Module, _Trained] = WeakKeyDictionary()


class TrainedBefore:
    """Remembers that a learner trained its model, and reports that to the next learner of that model.

    If the user runs the cell that builds the learner again, but not the one that makes the model, training
    goes on from trained weights and calls that epoch 1. There is no warning if the weights were loaded
    since (`load_state_dict`, a checkpoint), or if no learner of this process has trained the model.
    """

    def __init__(self, model: nn.Module, directory: str) -> None:
        self._model, self._directory = model, directory
        self._asked = False

    def remember(self, steps: int) -> None:
        """Note that the learner stands still after this many training steps."""
        if steps:
            _models[self._model] = _Trained(self._directory, _sample(self._model))
        else:
            _models.pop(self._model, None)

    def told(self, steps: int) -> Sequence[Notice]:
        """The warnings as this learner begins to train, given once; `steps` is how many it took before."""
        asked, self._asked = self._asked, True
        found = _models.get(self._model)
        if asked or steps or found is None or not _equal(found.sample, _sample(self._model)):
            return ()
        again = found.directory == self._directory
        text = (
            f"this model has been trained before in this kernel, by the learner of {found.directory}: its "
            "weights are not fresh, and epoch 1 starts from them"
        )
        # A second stage of training has another directory, and is not a mistake.
        more = "; make a new model in the same cell as the learner to start anew, or add .resume() to go on"
        return (Notice(text + more, "warning", answers=True) if again else Notice(text, answers=True),)


def _sample(model: nn.Module) -> tuple[Tensor, ...]:
    """A few values of the first and the last trainable parameters, to see if the weights are the same."""
    trained = [each for each in model.parameters() if each.requires_grad and type(each) is nn.Parameter]
    looked_at = [*trained[:2], *trained[2:][-2:]]
    with torch.no_grad():
        return tuple(copy_to_host([each.detach().reshape(-1)[:_VALUES] for each in looked_at]))


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )

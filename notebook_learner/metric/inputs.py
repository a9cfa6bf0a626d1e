"""The one rule by which metrics find their inputs: in what the step returned, and in its batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

TARGETS = ("labels", "label", "targets", "target", "y")
"""The names under which a model or a batch has the targets."""
RULE = (
    "Metrics read `output` from what the step returned, or `logits` there; and `targets` from there, or "
    "`labels`, `label`, `target` or `y`, else from the batch: by such a key of a dict, or its last part"
)


class Inputs:
    """What a step returned, as metrics see it.

    >>> made = Inputs({"loss": 1.0, "logits": "scores"}, ("x", "classes"))
    >>> made.loss, made.output, made.targets
    (1.0, 'scores', 'classes')
    """

    __slots__ = ("_batch", "made")

    def __init__(self, made: Any, batch: Any) -> None:
        self.made, self._batch = made, batch

    def __getattr__(self, name: str) -> Any:
        found = _field(self.made, name)
        if found is None and name == "output":
            found = _field(self.made, "logits")
        elif found is None and name == "targets":
            found = _first(self.made, TARGETS)
            if found is None:
                found = self._beside_output(_targets_of(self._batch))
        if found is None:
            raise AttributeError(name)
        return found

    def _beside_output(self, targets: Any) -> Any:
        """The batch's targets, where the output is: the step has moved a copy of them."""
        output = getattr(self, "output", None)
        if isinstance(targets, Tensor) and isinstance(output, Tensor) and targets.device != output.device:
            return targets.to(output.device, non_blocking=True)
        return targets


def made_by(item: Any) -> Any:
    """What the step itself returned."""
    return item.made if type(item) is Inputs else item


def _field(made: Any, name: str) -> Any:
    return made.get(name) if isinstance(made, Mapping) else getattr(made, name, None)


def _first(made: Any, names: tuple[str, ...]) -> Any:
    return next((each for name in names if (each := _field(made, name)) is not None), None)


def _targets_of(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return _first(batch, TARGETS)
    return batch[-1] if isinstance(batch, (tuple, list)) and len(batch) > 1 else None

"""The value that a rule (early stopping, a scheduler) reads at an epoch's end: one metric of one split."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError
from .values import Split

Finals = Mapping[tuple[Split, str], float]
Source = tuple[Split, str]
"""The split and the metric's name."""


def epoch_value(rule: str, source: Source, finals: Finals) -> float:
    """The value that a rule asks for; registered it is, so a missing one was never measured."""
    if source in finals:
        return finals[source]
    raise ConfigurationError([why_never_measured(rule, source)], "the epoch cannot end")


def why_never_measured(rule: str, source: Source) -> str:
    """The message if a rule uses a split that has no loader."""
    split, metric = source
    return (
        f"{rule} goes by the {split} {metric}, but there is no {split} loader; give one, "
        "fit(train_loader, valid_loader), or let it go by a metric of the training split"
    )

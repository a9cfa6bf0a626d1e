"""The values found in a step, before they become a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .batch import BatchTensor, Picture
from .culprit import Culprit
from .layers import Layer, Parameter
from .memory import Memory
from .optimizer import Group
from .samples import Sample


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """The values of a report. `Inspection` describes each of them, and prints them."""

    place: str
    model: str
    loss: float | None
    failed: str | None
    first_non_finite: Culprit | None
    batch: tuple[BatchTensor, ...]
    thumbnails: tuple[Picture, ...]
    samples: tuple[Sample, ...] | None
    samples_reason: str
    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...]
    optimizer: tuple[Group, ...]
    memory: Memory
    times: Mapping[str, float] | None
    notes: tuple[str, ...] = ()
    rank: int = 0

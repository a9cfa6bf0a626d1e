"""A run directory as values: `Artifacts`, its measurements, and `artifacts.h5`, the face for viewers."""

from .artifacts import Artifacts, Checkpoints
from .evaluations import Evaluation, Evaluations
from .follow import Block, EpochValues, TakenBack
from .series import Series

__all__ = [
    "Artifacts",
    "Block",
    "Checkpoints",
    "EpochValues",
    "Evaluation",
    "Evaluations",
    "Series",
    "TakenBack",
]

"""A run directory as values: `Artifacts`, its measurements, and `artifacts.h5`, the face for viewers.

In comes a directory, also one of a stranger; out go series, checkpoints and a status. What is read there is
checked first and runs no code, and a run that trains is not disturbed.
"""

from .artifacts import Artifacts
from .evaluations import Evaluation, Evaluations
from .follow import Block, EpochValues, TakenBack
from .recorded_run import Checkpoints
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

"""A run directory as values: `Artifacts`, its measurements, and `artifacts.h5`, the file for HDF5 viewers.

The input is a directory, perhaps a stranger's. The output is series, checkpoints and a status. Every file
is checked before it is used, no code in it is run, and a run that trains is not disturbed.
"""

from .artifacts import Artifacts
from .clock import Series
from .evaluations import Evaluation, Evaluations
from .follow import Block, EpochValues, TakenBack
from .recorded_run import Checkpoints

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

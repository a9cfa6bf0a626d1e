"""Train PyTorch models in a notebook: pause, step, rewind and resume exactly."""

from .errors import (
    BusyError,
    ConfigurationError,
    DataError,
    LoggerError,
    LossError,
    NotebookLearnerError,
    OutputError,
    Paused,
    StateError,
    StepError,
)
from .learner.checkpointer import Checkpointer, MemoryCheckpointer
from .learner.learner import Learner
from .learner.position import Position
from .learner.state import State
from .learner.step.output import (
    ClassificationOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
)
from .learner.step.step import TrainStep, ValidStep
from .learner.wiring.builder import LearnerBuilder

__version__ = "0.1.0.dev0"

__all__ = [
    "BusyError",
    "Checkpointer",
    "ClassificationOutput",
    "ConfigurationError",
    "DataError",
    "Learner",
    "LearnerBuilder",
    "LoggerError",
    "LossError",
    "MemoryCheckpointer",
    "MultiLabelClassificationOutput",
    "NotebookLearnerError",
    "OutputError",
    "Paused",
    "Position",
    "RegressionOutput",
    "SequenceOutput",
    "State",
    "StateError",
    "StepError",
    "TrainOutput",
    "TrainStep",
    "ValidStep",
]

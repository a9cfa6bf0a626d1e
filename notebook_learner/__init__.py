"""Train PyTorch models in a notebook: pause, step, rewind and resume exactly."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from .errors import (
    BusyError,
    CheckpointError,
    ConfigurationError,
    DamagedError,
    DataError,
    DetachError,
    LoggerError,
    LossError,
    NotebookLearnerError,
    OutputError,
    Paused,
    RankDied,
    RemoteError,
    StateError,
    StepError,
    StoreError,
)

if _TYPE_CHECKING:
    from .artifacts import Artifacts
    from .event.position import Position
    from .learner.evaluator import Evaluator
    from .learner.learner import Learner
    from .learner.wiring.builder import LearnerBuilder
    from .state.checkpoint_files import Checkpointer, MemoryCheckpointer
    from .state.state import State
    from .step.output import (
        ClassificationOutput,
        MultiLabelClassificationOutput,
        RegressionOutput,
        SequenceOutput,
        TrainOutput,
    )
    from .step.step import TrainStep, ValidStep

__version__ = "0.1.0.dev0"

__all__ = [
    "Artifacts",
    "BusyError",
    "CheckpointError",
    "Checkpointer",
    "ClassificationOutput",
    "ConfigurationError",
    "DamagedError",
    "DataError",
    "DetachError",
    "Evaluator",
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
    "RankDied",
    "RegressionOutput",
    "RemoteError",
    "SequenceOutput",
    "State",
    "StateError",
    "StepError",
    "StoreError",
    "TrainOutput",
    "TrainStep",
    "ValidStep",
]


_HOMES = {
    ".artifacts": ("Artifacts",),
    ".state.checkpoint_files": ("Checkpointer", "MemoryCheckpointer"),
    ".learner.evaluator": ("Evaluator",),
    ".learner.learner": ("Learner",),
    ".event.position": ("Position",),
    ".state.state": ("State",),
    ".step.output": (
        "ClassificationOutput",
        "MultiLabelClassificationOutput",
        "RegressionOutput",
        "SequenceOutput",
        "TrainOutput",
    ),
    ".step.step": ("TrainStep", "ValidStep"),
    ".learner.wiring.builder": ("LearnerBuilder",),
}
_PACKAGES = ("artifacts", "breakpoint", "checkpoint", "event", "inspection", "logger", "metric", "remote")


def __getattr__(name: str) -> _Any:
    """Load the module of a name at the name's first use. So the command line controls a run without torch,
    whose import takes two seconds."""
    if name in _PACKAGES:
        return _import_module(f".{name}", __name__)
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(_import_module(home, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


def load_ipython_extension(ipython: _Any) -> None:
    """`%load_ext notebook_learner`: makes a `%%train` cell the training step, and adds magics such as
    `%step`, `%rewind` and `%pause`, which control the learner. `%%train?` shows more."""
    from .magic import load

    load(ipython)


def unload_ipython_extension(ipython: _Any) -> None:
    """`%unload_ext notebook_learner`: removes the magics."""
    from .magic import unload

    unload(ipython)

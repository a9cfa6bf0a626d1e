"""Frozen event values, and the sinks that listen to them.

In come the facts of a training as the loop states them; out go values that loggers, renderers and policies
read. A sink may keep events and never changes one: all listeners are given the same objects.
"""

from .fanout import FanOut
from .record import cut, drift, rows, steps_before
from .sink import Display, Sink
from .values import (
    CheckpointSaved,
    Column,
    EpochEnded,
    Evaluated,
    Event,
    Marked,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Notice,
    Record,
    Rewound,
    RunOpened,
    SetProgress,
    Split,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    Status,
    StatusChanged,
)

__all__ = [
    "CheckpointSaved",
    "Column",
    "Display",
    "EpochEnded",
    "Evaluated",
    "Event",
    "FanOut",
    "Marked",
    "MetricAdded",
    "MetricBlock",
    "MetricInfo",
    "Notice",
    "Record",
    "Rewound",
    "RunOpened",
    "SetProgress",
    "Sink",
    "Split",
    "SplitEnded",
    "SplitRecord",
    "SplitStarted",
    "Status",
    "StatusChanged",
    "cut",
    "drift",
    "rows",
    "steps_before",
]

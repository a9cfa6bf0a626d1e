"""Frozen event values, and the sinks that listen to them.

The training loop sends frozen values; loggers, renderers and policies read them. A sink may keep an event but
must not change it: all listeners get the same objects.
"""

from .fanout import Display, FanOut, Sink
from .record import cut, drift, rows, steps_before, with_more
from .values import (
    CheckpointSaved,
    Column,
    EpochEnded,
    Evaluated,
    Event,
    Marked,
    Matrix,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Notice,
    Record,
    Rewound,
    RunOpened,
    SampleRow,
    SetProgress,
    Sheet,
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
    "Matrix",
    "MetricAdded",
    "MetricBlock",
    "MetricInfo",
    "Notice",
    "Record",
    "Rewound",
    "RunOpened",
    "SampleRow",
    "SetProgress",
    "Sheet",
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
    "with_more",
]

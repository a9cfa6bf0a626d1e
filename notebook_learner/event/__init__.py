"""Frozen event values, and the sinks that listen to them."""

from .fanout import FanOut
from .record import cut, drift, rows, steps_before
from .sink import Sink
from .values import (
    Column,
    EpochEnded,
    Event,
    MetricBlock,
    MetricInfo,
    Notice,
    Record,
    Rewound,
    RunOpened,
    Split,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    Status,
    StatusChanged,
)

__all__ = [
    "Column",
    "EpochEnded",
    "Event",
    "FanOut",
    "MetricBlock",
    "MetricInfo",
    "Notice",
    "Record",
    "Rewound",
    "RunOpened",
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

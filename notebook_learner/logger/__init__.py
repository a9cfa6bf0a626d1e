"""Sinks that keep what happened: in files, in memory, in words."""

from .application import ApplicationLogger
from .file import FileMetricLogger
from .history import Best, History, Mark
from .memory import InMemoryMetricLogger

__all__ = ["ApplicationLogger", "Best", "FileMetricLogger", "History", "InMemoryMetricLogger", "Mark"]

"""Sinks that keep what happened: in files, in memory, in words.

In come events; out go log files, a history, and lines of text. A logger drops nothing, and asks the run for
nothing.
"""

from .application import ApplicationLogger
from .file import FileMetricLogger
from .history import Best, History, Mark
from .memory import InMemoryMetricLogger

__all__ = ["ApplicationLogger", "Best", "FileMetricLogger", "History", "InMemoryMetricLogger", "Mark"]

"""Sinks that keep events: in files, in memory, as lines of text.

They receive events and write log files, a history, and lines of text. A logger loses nothing and never
calls the run.
"""

from .application import ApplicationLogger
from .file import FileMetricLogger
from .history import Best, History, InMemoryMetricLogger, Mark

__all__ = ["ApplicationLogger", "Best", "FileMetricLogger", "History", "InMemoryMetricLogger", "Mark"]

"""Bytes and files: where things lie in a run's directory, and how they are written so that they stay.

In come bytes, values and paths; out go durable files, locks, and what was read and checked. No other room
asks the file system for anything below a run's directory (`run_folder`, `files`), and no library opens a file
there itself.
"""

from .layout import RunLayout, check_metric_name, file_name, same_file
from .log_lines import LogFile, format_number, parse_log, read_log

__all__ = [
    "LogFile",
    "RunLayout",
    "check_metric_name",
    "file_name",
    "format_number",
    "parse_log",
    "read_log",
    "same_file",
]

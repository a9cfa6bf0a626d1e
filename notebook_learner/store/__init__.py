"""Bytes and files: the layout of a run's directory, and how files are written durably there.

The input is bytes, values and paths. The output is durable files, locks, and data that was read and checked.
No other package uses the file system below a run's directory (`run_folder`, `files`), and no library opens a
file there.
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

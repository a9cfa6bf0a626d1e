"""The artifact directory: its layout, and its log lines."""

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

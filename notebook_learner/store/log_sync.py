"""Makes metric logs durable for a checkpoint, which needs them after a power cut."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from . import files
from .layout import SPLITS, RunLayout, log_files
from .run_folder import RunPath


def sync_logs(layout: RunLayout, first_epoch: int, last_epoch: int) -> None:
    """Wait until the logs of these epochs are on the disk, and the names that lead to them."""
    touched = False
    for split in SPLITS:
        for epoch in range(first_epoch, last_epoch + 1):
            touched |= _sync_folder(layout.split_dir(split, epoch))
        if touched and (root := layout.directory / split).is_dir():
            files.sync_directory(root)
    if touched:
        files.sync_directory(layout.directory)
        files.sync_directory(layout.directory.parent)


def _sync_folder(folder: RunPath) -> bool:
    logs = log_files(folder)
    with suppress(FileNotFoundError):  # a rewind has removed these steps meanwhile
        for path in logs:
            _sync_file(path)
        if logs:
            files.sync_directory(folder)
    return bool(logs)


def _sync_file(path: Path) -> None:
    descriptor = files.open_to_read(path)
    try:
        files.sync(descriptor)
    finally:
        files.close(descriptor)

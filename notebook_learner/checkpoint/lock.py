"""Whether a living process keeps checkpoints in a folder: asked before anything is cleaned up there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..store import files


class FolderLock:
    """An advisory lock on the folder itself: no file of its own, gone with the process that held it.

    Nobody ever waits for it. Several learners may share a folder; only who cleans up needs it alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def alone(self) -> bool:
        """Take the folder for this process alone, if nobody else has it."""
        return self._take("LOCK_EX")

    def share(self) -> None:
        """Tell others that this process lives."""
        self._take("LOCK_SH")

    def release(self) -> None:
        """Let go."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                files.close(descriptor)

    def _take(self, kind: str) -> bool:
        try:
            import fcntl
        except ImportError:  # Windows: nothing is ever cleaned up there but by `repair`
            return False
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, getattr(fcntl, kind) | fcntl.LOCK_NB)
        except OSError:  # somebody has it, or the file system knows no locks
            return False
        return True

    def __del__(self) -> None:
        self.release()

"""Whether a living process keeps checkpoints in a folder: asked before anything is cleaned up there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..store import files
from ..store.descriptor import Descriptor
from ..store.run_folder import below


class FolderLock:
    """An advisory lock on the folder itself: no file of its own, gone with the process that held it.

    Nobody ever waits for it. Several learners may share a folder; only who cleans up needs it alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = below(path)
        self._folder = Descriptor()

    def alone(self) -> bool:
        """Take the folder for this process alone, if nobody else has it."""
        return self._take("LOCK_EX")

    def share(self) -> None:
        """Tell others that this process lives."""
        self._take("LOCK_SH")

    def release(self) -> None:
        """Let go."""
        with suppress(OSError):
            self._folder.close()

    def _take(self, kind: str) -> bool:
        try:
            import fcntl
        except ImportError:  # Windows: nothing is ever cleaned up there but by `repair`
            return False
        try:
            if self._folder.number is None:
                self._folder = Descriptor(files.open_directory(self.path))
            assert self._folder.number is not None
            fcntl.flock(self._folder.number, getattr(fcntl, kind) | fcntl.LOCK_NB)
        except OSError:  # somebody has it, or the file system knows no locks
            return False
        return True

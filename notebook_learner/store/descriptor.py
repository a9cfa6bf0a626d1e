"""A file descriptor that is closed when its object is garbage-collected."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from . import files


class Descriptor:
    """One open file. To open the file again, make a new object: Python calls a finalizer only once, and
    a learner's last files may be written after the garbage collector has run.

    >>> import os
    >>> opened = Descriptor(os.open(".", os.O_RDONLY))
    >>> opened.number is None
    False
    >>> opened.close()
    >>> opened.number is None
    True
    """

    __slots__ = ("number",)

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def close(self) -> None:
        """Close it; a second call does nothing."""
        number, self.number = self.number, None
        if number is not None:
            files.close(number)

    def __reduce__(self) -> Any:
        """Refuse: in another process its number is another file."""
        raise TypeError("an open file cannot be sent to another process")

    def __del__(self) -> None:
        with suppress(OSError):  # no caller is left to get the error, and durable data was synced before
            self.close()

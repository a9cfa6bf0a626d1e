"""A file descriptor that is given back when nobody holds it any more."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from . import files


class Descriptor:
    """One opening of a file. Who opens it again needs another one: Python calls a finalizer only once, and
    what a learner leaves behind is finished, and may write, after the garbage collector came by.

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
        """Give it back; again is no mistake."""
        number, self.number = self.number, None
        if number is not None:
            files.close(number)

    def __reduce__(self) -> Any:
        """Its number is another file in another process."""
        raise TypeError("an open file cannot be sent to another process")

    def __del__(self) -> None:
        with suppress(OSError):  # nobody is left to be told, and what has to last was synced before
            self.close()

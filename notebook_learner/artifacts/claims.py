"""Reads the JSON of a file value by value; a value of another type is a DamagedError."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from reprlib import repr as short
from typing import Any, Literal, NoReturn

from ..errors import DamagedError
from ..store.layout import check_metric_name

Split = Literal["train", "valid"]
LARGEST = 2**63 - 1
"""The largest 64-bit integer of HDF5."""


class Claims:
    """The members of one JSON object. Unknown members are ignored, so later versions may add some.

    >>> Claims({"epoch": -1}, "a mark").whole("epoch")
    Traceback (most recent call last):
        ...
    notebook_learner.errors.DamagedError: a mark says that 'epoch' is -1, but it must be a whole number \
from 0 on; the file is damaged
    """

    def __init__(self, value: object, what: str) -> None:
        self.what = what
        if not isinstance(value, Mapping):
            raise DamagedError(f"{what} is {short(value)}, but it must be an object; the file is damaged")
        self._value = value

    def member(self, key: str) -> object:
        """The value without a check: the caller must check it."""
        return self._value.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value.get(key, default)
        return value if isinstance(value, str) else self.refuse(key, "a string")

    def text_or_none(self, key: str) -> str | None:
        """A string, or null."""
        return None if self._value.get(key) is None else self.text(key)

    def whole(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number."""
        value = self._value.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(key, f"a whole number from {least} on")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        return self.finite(key, self._value.get(key))

    def number_or_none(self, key: str) -> float | None:
        """A finite number, or null."""
        return None if self._value.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._value.get(key)
        return value if isinstance(value, bool) else self.refuse(key, "true or false")

    def flag_or_none(self, key: str) -> bool | None:
        """True, false, or null."""
        return None if self._value.get(key) is None else self.flag(key)

    def split(self, key: str) -> Split:
        """One of the two splits."""
        match self._value.get(key):
            case "train":
                return "train"
            case "valid":
                return "valid"
        self.refuse(key, '"train" or "valid"')

    def metric_name(self, key: str) -> str:
        """A name that can name a log file."""
        value = self.text(key)
        return self.refuse(key, "the name of a metric") if check_metric_name(value) else value

    def items(self, key: str) -> Sequence[object]:
        """A list."""
        value = self._value.get(key, [])
        return value if isinstance(value, list) else self.refuse(key, "a list")

    def texts(self, key: str) -> dict[str, str]:
        """An object with strings only."""
        value = self._value.get(key, {})
        if not isinstance(value, dict) or not all(
            isinstance(each, str) for each in (*value, *value.values())
        ):
            self.refuse(key, "an object of strings")
        return dict(value)

    def finite(self, key: str, value: object) -> float:
        """Check that a value is a finite number."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.refuse(key, "a number")
        if abs(value) > LARGEST or not math.isfinite(value):
            return self.refuse(key, "a finite number")
        return float(value)

    def refuse(self, key: str, wanted: str) -> NoReturn:
        """Raise the error that says what is wrong."""
        value: Any = self._value.get(key)
        raise DamagedError(
            f"{self.what} says that {key!r} is {short(value)}, but it must be {wanted}; the file is damaged"
        )

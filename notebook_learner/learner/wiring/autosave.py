"""How often a run saves itself, parsed from what the user writes."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from ...run.saving import Autosave

_UNITS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+?)s?\s*")


def autosave_of(given: tuple[Any, bool] | None) -> Autosave:
    """Parse the arguments of `.autosave`; by default a pause is saved."""
    if given is None:
        return Autosave()
    every, on_pause = given
    if every is None or isinstance(every, int):
        return Autosave(steps=every, on_pause=on_pause)
    return Autosave(seconds=seconds_of(every), on_pause=on_pause)


def seconds_of(every: str | timedelta) -> float:
    """Parse a time as people write it.

    >>> seconds_of("10 min"), seconds_of("1.5h"), seconds_of("30 seconds")
    (600.0, 5400.0, 30.0)
    """
    if isinstance(every, timedelta):
        return every.total_seconds()
    match = _TIME.fullmatch(every.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{every!r} is not a time; write '30 s', '10 min' or '2 h'")
    return float(match[1]) * _UNITS[match[2]]

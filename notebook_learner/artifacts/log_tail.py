"""Reads one metric log as it grows, and only its complete lines."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedError
from ..event.values import Column, Floats, MetricInfo
from ..store import durable
from ..store.layout import check_metric_name
from ..store.log_lines import LogFile, parse_numbers, parse_rows

LOOK_BACK = 4096
"""Bytes before the last place that was read. Each look compares them: in a rewritten log they differ."""
_AT_ONCE = 1 << 22
MOST_ROWS, MOST_BYTES = 1 << 20, 1 << 23
"""The most rows in memory, and the most bytes of their lines. Then the log is full: the next rows are read
once some were handed out. So a file of any size takes little memory."""
_MOST_PLACES = 256
_FEW_PLACES = 8


class Tail:
    """Reads the complete lines that were added since the last time."""

    def __init__(self, path: Path, info: MetricInfo | None) -> None:
        self.path = path
        self.name = info.name if info is not None else path.name.removesuffix(".log")
        self.is_text = None if info is None else info.kind == "text"
        """None until the first lines were read."""
        self.rows = 0
        """Rows read so far."""
        self.final: float | None = None
        self.weighted = False
        self._first = 1
        """The number of the first row in memory."""
        self._bytes = 0
        """The size of the lines in memory."""
        self._values: list[Floats] = []
        self._weights: list[Floats] = []
        self._texts: list[str] = []
        self._offset = 0
        self._before = b""
        self._identity: tuple[int, int] | None = None
        self._seen: tuple[int, int] | None = None
        self._hash: Any = None
        self._places: list[tuple[int, int, str]] = []
        """(offset, rows, digest of all before): places at which the log can be compared again."""

    @property
    def usable(self) -> bool:
        """Whether its name can be the name of a metric."""
        return check_metric_name(self.name) is None

    @property
    def written_at(self) -> float:
        """The time of the last write to the file, as far as it was read."""
        return self._seen[0] / 1e9 if self._seen else 0.0

    def adopt(self) -> None:
        """Go on with another file of this name, which has the same beginning."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return
        self._identity, self._seen = (there.st_dev, there.st_ino), None

    def read(self) -> bool:
        """Read what was added; return whether there was something."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
            if not stat.S_ISREG(there.st_mode):
                return False
            start = self._offset - len(self._before)
            with durable.opened(self.path) as file:
                data = bytes(file.read(start, min(file.size - start, _AT_ONCE)))
        except (OSError, DamagedError):
            return False
        if not data.startswith(self._before):
            return False  # `changed` finds the reason
        self._identity = (there.st_dev, there.st_ino)
        self._seen = (there.st_mtime_ns, there.st_size)
        new = data[len(self._before) :].partition(b"\0")[0]
        new = new[: new.rfind(b"\n") + 1]
        if new:
            self._take(new)
        return bool(new)

    def fill(self, told: int) -> bool:
        """Read what was added after a row, as much as fits; False if there may be more."""
        while True:
            self._let_go(told)
            if self.rows - told >= MOST_ROWS or self._bytes >= MOST_BYTES:
                return False
            if not self.read():
                return True

    def changed(self) -> bool:
        """Whether the file now differs from what was read."""
        if self._identity is None:
            return False
        try:
            there = os.stat(self.path, follow_symlinks=False)
            if (there.st_dev, there.st_ino) != self._identity or there.st_size < self._offset:
                return True
            if (there.st_mtime_ns, there.st_size) == self._seen:
                return False
            with durable.opened(self.path) as file:
                start = self._offset - len(self._before)
                same = bytes(file.read(start, len(self._before))) == self._before
        except (OSError, DamagedError):
            return True
        return not same

    def still_right(self) -> tuple[int, bool]:
        """How many of the rows that were read the file surely still has, and whether it has all of them."""
        from xxhash import xxh3_128

        state, reached, rows = xxh3_128(), 0, 0
        try:
            with durable.opened(self.path) as file:
                for offset, count, digest in self._places:
                    while reached < offset:
                        size = min(offset - reached, _AT_ONCE)
                        state.update(file.read(reached, size))
                        reached += size
                    if state.hexdigest() != digest:
                        return rows, False
                    rows = count
        except (OSError, DamagedError):
            return rows, False
        return self.rows, True

    def column(self, first: int, last: int) -> Column:
        """The values of rows first..last, which then leave the memory; NaN for rows without a value."""
        values, weights = _joined(self._values), _joined(self._weights)
        chosen = self._chosen(values, first, last, np.nan)
        weight = self._chosen(weights, first, last, 0.0) if self.weighted else None
        self._values, self._weights = [values], [weights]
        self._let_go(last)
        return Column(chosen, weight)

    def text(self, first: int, last: int) -> tuple[str, ...]:
        """The lines first..last, which then leave the memory; empty texts for missing lines."""
        lines = self._texts[max(0, first - self._first) : max(0, last + 1 - self._first)]
        self._let_go(last)
        return (*lines, *[""] * (last - first + 1 - len(lines)))

    def _let_go(self, last: int) -> None:
        """Rows up to this one are no longer needed."""
        before, drop = self.rows + 1 - self._first, min(last, self.rows) + 1 - self._first
        if drop <= 0:
            return
        if self.is_text:
            del self._texts[:drop]
        else:
            self._values = [_joined(self._values)[drop:].copy()]
            self._weights = [_joined(self._weights)[drop:].copy()]
        self._first += drop
        self._bytes = self._bytes * (before - drop) // before

    def settle(self) -> None:
        """The pass has ended: keep fewer places."""
        self._places = self._places[-_FEW_PLACES:]

    def _chosen(self, values: Floats, first: int, last: int, blank: float) -> Floats:
        found = values[max(0, first - self._first) : max(0, last + 1 - self._first)]
        missing = last - first + 1 - len(found)
        return np.concatenate([found, np.full(missing, blank)]) if missing else found.copy()

    def _take(self, new: bytes) -> None:
        from xxhash import xxh3_128

        if self._hash is None:
            self._hash = xxh3_128()
        self._hash.update(new)
        self._offset += len(new)
        self._bytes += len(new)
        self._before = (self._before + new)[-LOOK_BACK:]
        self._parse(new)
        self._places.append((self._offset, self.rows, self._hash.hexdigest()))
        if len(self._places) > _MOST_PLACES:
            self._places = [*self._places[:-1:2], self._places[-1]]

    def _parse(self, new: bytes) -> None:
        numbers = None if self.is_text else parse_numbers(new)
        if self.is_text is None:
            self.is_text = numbers is None
        if self.is_text:
            lines = new.decode(errors="replace").split("\n")[:-1]
            self._texts += lines
            self.rows += len(lines)
        else:
            self._add(parse_rows(new) if numbers is None else numbers)

    def _add(self, log: LogFile) -> None:
        self._values.append(log.values)
        self._weights.append(np.ones(len(log.values)) if log.weights is None else log.weights)
        self.weighted |= log.weights is not None
        self.rows += len(log.values)
        self.final = self.final if log.final is None else log.final


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)

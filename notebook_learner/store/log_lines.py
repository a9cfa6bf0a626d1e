"""The lines of a metric log, exactly as Burn writes them.

    84.375,32      a batch's value and weight
    17.5           an unweighted reading
    GPU 0: 3 GB    the text of a text metric
    91.25,final    the epoch's value, last line

Line k is step k. Numbers are the shortest text that reads back to the same bits, without an exponent
or a trailing `.0`.
"""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from .durable import Reader, opened

BLOCK = 1 << 18
"""Bytes read and parsed at once: a parsed line takes up to 30 times its bytes for a moment."""
LARGEST = 1 << 30
"""The most bytes of a log. With fifteen bytes for each step, this is a pass of 70 million steps. Its values
take the same in memory."""
LONGEST_LINE = 1 << 24
"""The most bytes of a line. A number has fewer than 2,000, and longer texts are cut when they are written."""

_NULS = re.compile(rb"\0+")


class LogLines:
    """Blocks of whole lines, in order, up to the first damage.

    They end before the first NUL byte: after a power cut a file may end in blocks of NUL bytes. They end
    before a line that is longer than any written line. A last line without its end is left out.
    """

    def __init__(self, file: Reader, block: int = BLOCK, longest: int = LONGEST_LINE) -> None:
        self._file, self._block, self._longest = file, block, longest
        self.end = 0
        """Bytes of the whole lines so far; at the end, of all undamaged lines."""
        self.nul: int | None = None
        """The place of the first NUL byte, if there is one."""
        self.too_long = False
        """Whether a line was longer than any may be."""

    def __iter__(self) -> Iterator[bytes]:
        begun, at, self.end, self.nul, self.too_long = bytearray(), 0, 0, None, False
        while at < self._file.size and self.nul is None:
            data = self._file.read(at, min(self._block, self._file.size - at))
            found = data.find(b"\0")
            if found >= 0:
                self.nul = at + found
                del data[found:]
            at += len(data)
            cut = data.rfind(b"\n") + 1
            if cut:
                whole = bytes(begun + data[:cut])
                self.end += len(whole)
                yield whole
                begun = data[cut:]
            else:
                begun += data
            if len(begun) > self._longest:
                self.too_long = True
                return


def lines_between(
    file: Reader, start: int, end: int, longest: int = 1 << 16, block: int = BLOCK
) -> Iterator[list[bytes]]:
    """The whole lines of a part of a file that only grows, a block at a time.

    NUL bytes end a line, because the power cut that left them ended it. Lines over `longest` are skipped.
    """
    begun, passes_over = b"", False
    for at in range(start, end, block):
        data = _NULS.sub(b"\n", file.read(at, min(block, end - at)))  # one for all: a block may hold no other
        *lines, begun = (begun + data).split(b"\n")
        if passes_over:
            passes_over = not lines
            begun = b"" if passes_over else begun
            del lines[:1]
        if len(begun) > longest:
            begun, passes_over = b"", True
        yield [line for line in lines if len(line) <= longest]


Floats = NDArray[np.float64]

LONGEST_TEXT = 1 << 20
"""The most characters of a text metric's line, or of a line of the application log. A character takes up to
four bytes when it is read."""
_COMMA, _NEWLINE = b",\n"
_NUMERIC = b"0123456789.,\n-+eEinfNa"


class LogRows(Protocol):
    """Values with their weights; `event.Column` is one."""

    @property
    def values(self) -> Floats: ...
    @property
    def weights(self) -> Floats | None: ...


def format_number(number: float) -> str:
    """The shortest text that reads back to the same bits, as Rust prints a number.

    >>> format_number(64.0), format_number(1e-07), format_number(float("nan")), format_number(-float("inf"))
    ('64', '0.0000001', 'NaN', '-inf')
    """
    text = repr(float(number))
    if text[-2:] == ".0":
        return text[:-2]
    if "e" in text or "n" in text:
        return _format_unusual(text)
    return text


def _format_unusual(text: str) -> str:
    if text == "nan":
        return "NaN"
    if text[-3:] == "inf":
        return text
    return format(Decimal(text), "f")


def format_numbers(numbers: Floats) -> list[str]:
    """`format_number` of each.

    >>> format_numbers(np.array([64.0, 0.5]))
    ['64', '0.5']
    """
    return _each_before(" ", numbers).split()


def format_rows(column: LogRows) -> str:
    """The lines of a block, one for each step, also for a step of weight 0, so that line k is step k."""
    if column.weights is None:
        return _each_before("\n", column.values)
    weight = _only(column.weights)
    if weight is not None:
        return _each_before(f",{weight}\n", column.values)
    pairs = zip(format_numbers(column.values), format_numbers(column.weights), strict=True)
    return "".join([f"{value},{weight}\n" for value, weight in pairs])


def _each_before(end: str, numbers: Floats) -> str:
    """`format_number` of each, with a text after it. JSON has the same digits, and msgspec writes them in a
    tenth of Python's time. Its separator between two numbers of a list is replaced by that text."""
    from msgspec import json  # 30 ms to import: only to write, not to read

    only = _only(numbers)
    if only is not None:
        return (only + end) * len(numbers)
    text = json.encode(numbers.tolist())[1:-1].decode()
    if not text:
        return ""
    if "e" in text or "n" in text:  # 1e-7; null
        return "".join([format_number(number) + end for number in numbers.tolist()])
    return f"{text},".replace(".0,", ",").replace(",", end)


def _only(numbers: Floats) -> str | None:
    """The number that all rows of a column share, as a rate, or the weights of all batches but the last."""
    if len(numbers) and numbers[0] == numbers[-1] != 0 and bool((numbers == numbers[0]).all()):
        return format_number(float(numbers[0]))
    return None


def format_final(value: float) -> str:
    """The last line of a finished epoch.

    >>> format_final(91.0)
    '91,final\\n'
    """
    return format_number(value) + ",final\n"


def format_text(text: str) -> str:
    """A text metric's line: each line break becomes a space, and the text is cut to what readers accept.

    >>> format_text("GPU 0: 3 GB\\nGPU 1: idle")
    'GPU 0: 3 GB GPU 1: idle\\n'
    """
    return " ".join(text.splitlines())[:LONGEST_TEXT] + "\n"


@dataclass(frozen=True, slots=True)
class LogFile:
    """The contents of a metric log; `values[k]` belongs to step k + 1.

    `weights` is None for unweighted readings, `final` until the epoch has ended, `texts` unless the
    lines are free text (then there are no values).
    """

    values: Floats
    weights: Floats | None = None
    final: float | None = None
    texts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values) if self.texts is None else len(self.texts)


def read_log(path: str | os.PathLike[str]) -> LogFile:
    """Read a metric log, also while it is being written.

    A last line without its end is left out, and so is everything after a NUL byte, which a power cut leaves.

    Raises:
        StoreError: it is not a plain file, or no training writes such a file.
    """
    here = repr(os.fspath(path))
    try:
        with opened(Path(os.path.realpath(path))) as file:
            if file.size > LARGEST:
                raise StoreError(
                    f"{here} has {file.size:,} bytes, and a metric log of over {LARGEST:,} is not read"
                )
            found = numbers_of(LogLines(file))
            return found if found is not None else parse_log(b"".join(LogLines(file)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"{here} cannot be read as a metric log: {error.strerror or error}; give the path of one, such "
            "as train/epoch-1/Loss.log of a run"
        ) from error
    except MemoryError:
        raise StoreError(f"the values in {here} do not fit into memory; free memory, and try again") from None


def numbers_of(blocks: Iterable[bytes]) -> LogFile | None:
    """Read blocks of whole lines of a numeric log; None if they are not numbers of one shape."""
    values, weights, final = array("d"), array("d"), None
    for block in blocks:
        part = None if final is not None else parse_numbers(block)
        if part is None or (len(part) and values and (part.weights is None) == bool(weights)):
            return None
        values.frombytes(part.values.tobytes())
        if part.weights is not None:
            weights.frombytes(part.weights.tobytes())
        final = part.final
    return LogFile(_as_floats(values), _as_floats(weights) if weights else None, final)


def parse_log(data: bytes) -> LogFile:
    """Read the bytes of a metric log.

    >>> parse_log(b"0.5,32\\n0.25,16\\n0.4166,final\\n0.1")
    LogFile(values=array([0.5 , 0.25]), weights=array([32., 16.]), final=0.4166, texts=None)
    """
    whole = data[: data.rfind(b"\n") + 1]
    numbers = parse_numbers(whole)
    if numbers is None:
        return LogFile(np.empty(0), texts=tuple(whole.decode(errors="replace").split("\n")[:-1]))
    return numbers


def parse_rows(lines: bytes) -> LogFile:
    """Read whole lines of several shapes, a row each: a line that is not a number is NaN with weight 0."""
    values, weights, final, weighted = array("d"), array("d"), None, False
    for line, same in groupby(lines.split(b"\n")[:-1]):  # a damaged log may have millions of equal lines
        one = parse_numbers(line + b"\n")
        if one is not None and one.final is not None:
            final = one.final
            continue
        value, weight = math.nan, 0.0
        if one is not None:
            value, weight = float(one.values[0]), 1.0 if one.weights is None else float(one.weights[0])
        weighted |= one is None or one.weights is not None
        count = len([*same])
        values += array("d", [value]) * count
        weights += array("d", [weight]) * count
    return LogFile(_as_floats(values), _as_floats(weights) if weighted else None, final)


def parse_numbers(lines: bytes) -> LogFile | None:
    """Read whole lines of a metric log; None if they are not numbers of one shape."""
    rows, final = _split_final(lines)
    numbers = _parse_numbers(rows)
    return None if numbers is None else LogFile(*numbers, final)


def _as_floats(numbers: array[float]) -> Floats:
    return np.frombuffer(numbers, np.float64) if numbers else np.empty(0)


def _split_final(data: bytes) -> tuple[bytes, float | None]:
    if not data.endswith(b",final\n"):
        return data, None
    start = data.rfind(b"\n", 0, -1) + 1
    final = _to_floats([data[start : -len(b",final\n")]])
    return (data, None) if final is None else (data[:start], float(final[0]))


def _parse_numbers(data: bytes) -> tuple[Floats, Floats | None] | None:
    """Values and weights, or None if the lines are not numbers of one shape."""
    if data.translate(None, _NUMERIC):
        return None
    if b"," not in data:
        values = _to_floats(data.split(b"\n")[:-1])
        return None if values is None else (values, None)
    separators = np.frombuffer(data, np.uint8)
    separators = separators[(separators == _COMMA) | (separators == _NEWLINE)]
    if len(separators) % 2 or (separators[::2] != _COMMA).any() or (separators[1::2] != _NEWLINE).any():
        return None
    both = _to_floats(data[:-1].replace(b"\n", b",").split(b","))
    return None if both is None else (both[::2].copy(), both[1::2].copy())


def _to_floats(tokens: list[bytes]) -> Floats | None:
    try:
        return np.array([float(token) for token in tokens], dtype=np.float64)
    except ValueError:
        return None

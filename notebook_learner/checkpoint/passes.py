"""`passes.jsonl`: the passes before a run's checkpoints, written once for all of them.

A checkpoint that held all earlier passes would cost more with every epoch. So the passes are here, a few in
each line, and a line never changes. A commit file names the last line that it needs by place, size and
checksum, and each line names the one before it in the same way. So every byte that a checkpoint needs is
checked. A run that went back goes on from an older line: the lines of the branch that it left, and half a
line of a killed process, do no harm.

    {"after":{"offset":0,"size":187,"digest":"5f..."},"told":{"passes":[[9,"train",10,{"Loss":0.25}], ...]}}
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import DamagedError
from ..store import durable, files
from ..store.durable import digest_of
from ..store.json_text import parse, to_text
from ..store.run_folder import RunPath
from ..store.tree import Malformed, pack, unpack

NAME = "passes.jsonl"


@dataclass(frozen=True, slots=True)
class Line:
    """The place of a line, and its checksum."""

    offset: int
    size: int
    digest: str

    @property
    def end(self) -> int:
        """The least length of the file."""
        return self.offset + self.size

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def line_of(told: Any) -> Line | None:
    """Read the reference of a commit file, or of a line, to the line that it needs; None if it needs no line.

    Raises:
        ValueError: it is not a place in a file.
    """
    if told is None:
        return None
    match told:
        case {"offset": int(offset), "size": int(size), "digest": str(digest)}:
            if 0 <= offset < 1 << 62 and 0 < size < 1 << 62:
                return Line(offset, size, digest)
    raise ValueError("it is not a place in a file")


def append(path: RunPath, told: Iterable[Mapping[str, Any]], after: Line | None) -> Sequence[Line]:
    """Add a line for each value, and wait until the lines are on the disk."""
    lines = []
    descriptor = files.open_to_append(path)
    try:
        for each in told:
            before = None if after is None else after.to_json()
            text = to_text(pack({"after": before, "told": each}, NAME).tree).encode() + b"\n"
            after = Line(files.size_of(descriptor), len(text), digest_of(text))
            _write(descriptor, memoryview(text))
            lines.append(after)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    return lines


def holds(path: Path, line: Line) -> bool:
    """Whether the file is long enough for a line. Nothing is read."""
    try:
        return path.lstat().st_size >= line.end
    except OSError:
        return False


def walk_back(path: Path, last: Line | None) -> Iterator[tuple[Line, Mapping[str, Any]]]:
    """Read a line and all lines before it, the last one first, and check every byte. The values of one line
    are in memory at a time: use them before the next line.

    Raises:
        DamagedError: a line is not what was written.
    """
    if last is None:
        return
    try:
        with durable.opened(path) as file:
            line: Line | None = last
            while line is not None:
                before, told = _read(file, line)
                yield line, told
                line = before
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None


def _read(file: durable.Reader, line: Line) -> tuple[Line | None, Mapping[str, Any]]:
    if line.end > file.size:
        raise _damaged(file.path, f"it has {file.size} bytes, and needs {line.end}: it was cut")
    text = file.read(line.offset, line.size)
    if digest_of(text) != line.digest:
        raise _damaged(file.path, f"its line at byte {line.offset} is not the one that was written there")
    try:
        value = unpack(parse(text, file.size - line.size), [])
        before, told = line_of(value["after"]), value["told"]
        if not isinstance(told, dict) or (before is not None and before.end > line.offset):
            raise ValueError("no line of passes")
    except (Malformed, KeyError, TypeError, ValueError) as error:
        raise _damaged(file.path, f"its line at byte {line.offset} is malformed: {error}") from None
    return before, told


def _write(descriptor: int, rest: memoryview) -> None:
    while rest:
        count = files.append(descriptor, rest)
        if not count:
            raise OSError(errno.EIO, "the file system took no byte and gave no reason", NAME)
        rest = rest[count:]


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"{path}: {why}. Checkpoints need it for what was measured before them; bring back the file that was "
        "there, or take the weights alone with Artifacts(...).load_model"
    )

"""`passes.jsonl`: what a run's checkpoints need of the passes before them, written once.

A checkpoint that held all earlier passes would cost more with every epoch. So they stand here, a line for a
few passes at a time, which never changes; a commit file names the last line that it needs by place, size
and checksum, and each line names the one before it in the same way. So what a checkpoint says is checked to
the byte. A run that went back goes on from an older line: the lines of the branch that it left, and half a
line of a process that was killed, do no harm.

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
from ..store.digest import digest_of
from ..store.json_text import parse, to_text
from ..store.run_folder import RunPath
from ..store.tree import Malformed, pack, unpack

NAME = "passes.jsonl"


@dataclass(frozen=True, slots=True)
class Line:
    """Where a line is, and its checksum."""

    offset: int
    size: int
    digest: str

    @property
    def end(self) -> int:
        """How long the file must be at least."""
        return self.offset + self.size

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def line_of(told: Any) -> Line | None:
    """What a commit file, or a line, says of the line that it needs; None where it needs none.

    Raises:
        ValueError: it speaks of no place in a file.
    """
    if told is None:
        return None
    match told:
        case {"offset": int(offset), "size": int(size), "digest": str(digest)}:
            if 0 <= offset < 1 << 62 and 0 < size < 1 << 62:
                return Line(offset, size, digest)
    raise ValueError("it is not a place in a file")


def append(path: RunPath, told: Iterable[Mapping[str, Any]], after: Line | None) -> Sequence[Line]:
    """Add a line each and wait until they are on the disk."""
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
    """A line and all those before it, the last one first, every byte of them checked. Values are made of one
    line at a time: look at them before the next.

    Raises:
        DamagedError: one of them is not what was written.
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

"""Whole files: what the disk is told while one is written."""

from __future__ import annotations

import errno
import os
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notebook_learner.store import durable, files

SMALL = 1 << 12


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "AHEAD", 3 * SMALL)
    monkeypatch.setattr(durable, "BATCH", SMALL)


def some(size: int) -> list[bytes]:
    data = os.urandom(size)
    return [data[start : start + 1000] for start in range(0, size, 1000)]


def test_the_disk_begins_before_a_large_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Any]] = []
    real_write, real_begin, real_sync = files.write_at, files.begin_to_sync, files.sync

    def write_at(descriptor: int, buffers: Any, offset: int) -> int:
        count = real_write(descriptor, buffers, offset)
        done.append(("written", offset + count))
        return count

    def begin_to_sync(descriptor: int, offset: int, size: int) -> None:
        done.append(("begun", (offset, offset + size)))
        real_begin(descriptor, offset, size)

    def sync(descriptor: int) -> None:
        done.append(("synced", None))
        real_sync(descriptor)

    monkeypatch.setattr(files, "write_at", write_at)
    monkeypatch.setattr(files, "begin_to_sync", begin_to_sync)
    monkeypatch.setattr(files, "sync", sync)
    pieces = some(100_000)
    durable.write_new(tmp_path / "large", pieces, 100_000)

    assert (tmp_path / "large").read_bytes() == b"".join(pieces)
    begun = [what for kind, what in done if kind == "begun"]
    assert len(begun) >= 5 and done[-1] == ("synced", None)
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]  # one after the other
    written = 0
    for kind, what in done[:-1]:
        if kind == "written":
            written = what
        else:
            assert what[1] == written and what[1] - what[0] >= durable.AHEAD


def test_a_small_file_is_left_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "begin_to_sync", lambda *given: pytest.fail("nothing to gain"))
    durable.write_new(tmp_path / "small", some(2 * SMALL), 2 * SMALL)
    assert (tmp_path / "small").stat().st_size == 2 * SMALL


@pytest.mark.parametrize("hint", [None, OSError(errno.EINVAL, "Invalid argument")], ids=["none", "refused"])
def test_a_system_that_takes_no_hint_gets_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hint: OSError | None
) -> None:
    def refuse(*given: Any) -> None:
        assert hint is not None
        raise hint

    if hint is None:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    pieces = some(100_000)
    durable.write_new(tmp_path / "large", pieces, 100_000)
    assert (tmp_path / "large").read_bytes() == b"".join(pieces)


PIECES = st.lists(st.binary(max_size=9), min_size=1, max_size=12)
COUNTS = st.lists(st.integers(1, 25), min_size=1, max_size=9)
"""How many bytes the system takes or gives in a call, over and over."""


def short(monkeypatch: pytest.MonkeyPatch, name: str, counts: list[int]) -> None:
    """Let a call on several buffers stop after so many bytes, in the midst of a buffer or between two."""
    real = getattr(files, name)
    turn = cycle(counts)

    def some_of_it(descriptor: int, buffers: Any, offset: int) -> int:
        left, first = next(turn), []
        for buffer in buffers:
            if left > 0 and buffer.nbytes:
                first.append(buffer[:left])
                left -= buffer.nbytes
        return real(descriptor, first, offset)

    monkeypatch.setattr(files, name, some_of_it)


@given(pieces=PIECES, counts=COUNTS, batch=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_short_writes_of_several_buffers_lose_and_repeat_nothing(
    pieces: list[bytes], counts: list[int], batch: int, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable, "BATCH", batch)
        short(patch, "write_at", counts)
        durable.replace(tmp_path / "file", pieces, sum(map(len, pieces)))
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@given(pieces=PIECES, counts=COUNTS, most=st.integers(1, 12), before=st.binary(max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_short_reads_into_several_buffers_fill_each_with_its_bytes(
    pieces: list[bytes], counts: list[int], most: int, before: bytes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(before + b"".join(pieces))
    filled = [bytearray(len(piece)) for piece in pieces]
    with pytest.MonkeyPatch.context() as patch, durable.opened(tmp_path / "file") as file:
        patch.setattr(durable, "MOST_BUFFERS", most)
        short(patch, "read_at", counts)
        file.fill([memoryview(buffer) for buffer in filled], len(before))
    assert filled == pieces

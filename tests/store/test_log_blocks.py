"""Reading a log a block at a time gives what reading it whole gives."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebook_learner.store import durable
from notebook_learner.store.log_lines import LogLines, lines_between

LINES = st.one_of(
    st.sampled_from(
        [b"0.5,32\n", b"0.25,16\n", b"17.5\n", b"NaN,0\n", b"0.5,final\n", b"\n", b"\xc3\xa4 b\n"]
    ),
    st.binary(max_size=12).map(lambda data: data + b"\n"),
)
LOGS = st.tuples(st.lists(LINES, max_size=12), st.binary(max_size=6)).map(
    lambda both: b"".join(both[0]) + both[1]
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("logs") / "Loss.log"


@settings(deadline=None, max_examples=200)
@given(LOGS, st.integers(1, 40))
def test_blocks_of_any_size_hold_the_whole_lines_before_the_first_nul(path, data, block):
    path.write_bytes(data)
    with durable.opened(path) as file:
        lines = LogLines(file, block)
        found = list(lines)
    believed = data.partition(b"\0")[0]
    believed = believed[: believed.rfind(b"\n") + 1]
    assert b"".join(found) == believed and all(each.endswith(b"\n") for each in found)
    assert lines.end == len(believed)
    assert lines.nul == (data.find(b"\0") if b"\0" in data else None) and not lines.too_long


@settings(deadline=None, max_examples=100)
@given(LOGS, st.integers(1, 40), st.integers(0, 20))
def test_lines_that_are_too_long_end_a_metric_log(path, data, block, longest):
    path.write_bytes(data)
    with durable.opened(path) as file:
        lines = LogLines(file, block, longest)
        found = b"".join(lines)
    whole = data.partition(b"\0")[0]
    assert whole.startswith(found)
    if lines.too_long:
        rest = whole[len(found) :].partition(b"\n")[0]
        assert len(rest) > longest
    else:
        assert found == whole[: whole.rfind(b"\n") + 1]


@settings(deadline=None, max_examples=200)
@given(LOGS, st.integers(1, 40), st.integers(0, 20))
def test_an_application_log_is_read_past_nul_bytes_and_lines_that_are_too_long(path, data, block, longest):
    path.write_bytes(data)
    with durable.opened(path) as file:
        found = [line for lines in lines_between(file, 0, file.size, longest, block) for line in lines]
    lines = data.replace(b"\0", b"\n").split(b"\n")[:-1]
    assert [line for line in found if line] == [line for line in lines if line and len(line) <= longest]


def test_a_file_of_10_gb_is_read_no_further_than_its_first_nul(tmp_path, monkeypatch):
    (tmp_path / "Loss.log").write_bytes(b"0.5,16\n")
    os.truncate(tmp_path / "Loss.log", 10 << 30)
    with durable.opened(tmp_path / "Loss.log") as file:
        lines = LogLines(file)
        taken, read = [], file.read
        monkeypatch.setattr(file, "read", lambda *where: taken.append(where[1]) or read(*where))
        assert list(lines) == [b"0.5,16\n"]
    assert (lines.end, lines.nul) == (7, 7) and sum(taken) < 1 << 20

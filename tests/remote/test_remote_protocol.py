"""What goes over the socket: commands out of the list, one line of JSON each way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.remote.protocol import LONGEST, line_of, read_answer, read_command
from notebook_learner.steering.command import ARGUMENTS, Answer, Command, CommandError

rates = st.dictionaries(st.integers(0, 99).map("lr[{}]".format), st.floats(0, 1e6), min_size=1, max_size=100)
commands = (
    st.sampled_from(["status", "pause", "resume", "stop", "save"]).map(Command)
    | st.integers(1, 1_000_000).map(lambda n: Command("step", {"n": n}))
    | rates.map(lambda found: Command("set", found))
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(commands)
def test_a_command_comes_over_the_socket_as_it_was(command):
    line = line_of(command)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and len(line) <= LONGEST
    assert read_command(line) == command


@given(st.booleans(), st.text(), st.dictionaries(st.text(), st.integers() | st.none()))
def test_an_answer_comes_over_the_socket_as_it_was(ok, text, facts):
    answer = Answer(ok, text, facts)
    assert line_of(answer).count(b"\n") == 1
    assert read_answer(line_of(answer)) == answer


@given(st.binary(max_size=300) | anything.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_command_of_the_list_or_refused(line):
    try:
        command = read_command(line)
    except CommandError:
        return
    assert command.cmd in {*ARGUMENTS, "set"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b'{"cmd": "eval"}',
        b'{"cmd": ["pause"]}',
        b'{"cmd": "pause", "args": {"n": 1}}',
        b'{"cmd": "pause", "args": []}',
        b'{"cmd": "step"}',
        b'{"cmd": "set", "args": {"lr": NaN}}',
        b'{"cmd": "set", "args": {"lr": Infinity}}',
        b'{"cmd": "set", "args": {"lr": 1' + b"0" * 400 + b"}}",
        b'{"cmd": "set", "args": {"lr": 1' + b"0" * 5000 + b"}}",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_it_is_refused(line):
    with pytest.raises(CommandError):
        read_command(line)

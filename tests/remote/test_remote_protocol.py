"""What goes over the socket: requests out of a fixed list, one line of JSON each way."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.remote.protocol import (
    LONGEST,
    Answer,
    Request,
    RequestError,
    checked,
    read_answer,
    read_request,
    request_of,
)

COMMANDS = ("status", "pause", "resume", "step", "stop", "save", "set")

rates = st.floats(0, 1e6) | st.integers(0, 1000)
changes = st.dictionaries(
    st.just("lr") | st.integers(0, 9999).map("lr[{}]".format), rates, max_size=20
).flatmap(
    lambda found: (
        (st.just(found) if found else st.nothing())
        | st.integers(1, 1 << 31).map(lambda number: {**found, "num_epochs": number})
    )
)
requests = (
    st.sampled_from(["status", "pause", "resume", "stop", "save"]).map(Request)
    | st.integers(1, 1_000_000).map(lambda n: Request("step", {"n": n}))
    | changes.map(lambda found: Request("set", found))
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(requests)
def test_a_request_comes_over_the_socket_as_it_was(request):
    line = request.line()
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and len(line) <= LONGEST
    assert read_request(line) == request


@given(requests)
def test_a_request_can_be_typed_as_it_is_printed(request):
    assert request_of(str(request).split()) == request


@given(st.booleans(), st.text(), st.dictionaries(st.text(), st.integers() | st.none()))
def test_an_answer_comes_over_the_socket_as_it_was(ok, text, facts):
    answer = Answer(ok, text, facts)
    assert answer.line().count(b"\n") == 1
    assert read_answer(answer.line()) == answer


@given(st.binary(max_size=300) | anything.map(lambda value: json.dumps(value).encode()))
def test_whatever_comes_is_a_request_of_the_list_or_refused(line):
    try:
        request = read_request(line)
    except RequestError:
        return
    assert request.cmd in COMMANDS


@given(st.sampled_from(COMMANDS), anything)
def test_arguments_that_cannot_be_are_refused(cmd, args):
    try:
        request = checked(cmd, args)
    except RequestError:
        return
    if cmd == "step":
        assert type(args["n"]) is int and 1 <= args["n"] <= 1_000_000
    elif cmd == "set":
        assert args and all(name == "num_epochs" or name.startswith("lr") for name in args)
    else:
        assert args == {}
    assert request.args is args


@given(st.lists(st.text(string.printable, max_size=12), max_size=4))
def test_typed_words_are_a_request_or_refused_in_one_line(words):
    try:
        request_of(words)
    except RequestError as refused:
        assert str(refused).strip() and "\n" not in str(refused)


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
        b'{"cmd": "step", "args": {"n": 0}}',
        b'{"cmd": "step", "args": {"n": true}}',
        b'{"cmd": "step", "args": {"n": 1.0}}',
        b'{"cmd": "step", "args": {"n": 1000001}}',
        b'{"cmd": "set", "args": {}}',
        b'{"cmd": "set", "args": {"lr": NaN}}',
        b'{"cmd": "set", "args": {"lr": Infinity}}',
        b'{"cmd": "set", "args": {"lr": -0.1}}',
        b'{"cmd": "set", "args": {"lr": "0.1"}}',
        b'{"cmd": "set", "args": {"lr": true}}',
        b'{"cmd": "set", "args": {"lr": 1' + b"0" * 400 + b"}}",
        b'{"cmd": "set", "args": {"lr": 1' + b"0" * 5000 + b"}}",
        b'{"cmd": "set", "args": {"lr[-1]": 1}}',
        b'{"cmd": "set", "args": {"lr[1]x": 1}}',
        b'{"cmd": "set", "args": {"momentum": 1}}',
        b'{"cmd": "set", "args": {"num_epochs": 0}}',
        b'{"cmd": "set", "args": {"num_epochs": 2.5}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_it_is_refused(line):
    with pytest.raises(RequestError):
        read_request(line)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is no command ''"),
        (["fly"], "there is no command 'fly'"),
        (["pause", "now"], "pause takes nothing after it"),
        (["step", "1", "2"], "step takes one number after it"),
        (["step", "-1"], "from 1 to 1000000"),
        (["set", "lr"], "'lr' is no name=value"),
        (["set", "lr=fast"], "lr is a number that is not negative, and not 'fast'"),
        (["set", "momentum=1"], "'momentum' cannot be set; lr, lr[1]"),
    ],
)
def test_a_wrong_command_is_told_what_would_be_right(words, told):
    with pytest.raises(RequestError) as caught:
        request_of(words)
    assert told in str(caught.value)

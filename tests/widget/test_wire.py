"""A page sends the commands of the list, and three requests of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.steering.command import Command, CommandError
from notebook_learner.widget.wire import Request, parse


@pytest.mark.parametrize(
    ("cmd", "args"),
    [
        ("hello", {}),
        ("resync", {}),
        ("look", {"visible": True}),
        ("run", {}),
        ("step", {"n": 1}),
        ("set", {"num_epochs": 20}),
        ("breakpoint", {"name": "NonFinite", "on": False}),
    ],
)
def test_what_a_page_may_ask_for(cmd: str, args: dict[str, Any]) -> None:
    asked = parse({"cmd": cmd, "args": args, "seq": 7, "client": "a"})
    assert asked == Request(Command(cmd, args), 7, "a")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "an object"),
        ([], "an object"),
        ({}, "no command 'None'"),
        ({"cmd": "fit"}, "no command 'fit'"),
        ({"cmd": "look"}, "look takes visible"),
        ({"cmd": "look", "args": {"visible": 1}}, "look takes visible, on or off"),
        ({"cmd": "hello", "args": []}, "the arguments of hello are an object"),
        ({"cmd": "step", "args": {"n": 0}}, "step takes n"),
        ({"cmd": "run", "args": {}, "seq": "1"}, "a number and a sender"),
        ({"cmd": "run", "args": {}, "client": 5}, "a number and a sender"),
        ({"cmd": "run", "args": {}, "client": "x" * 201}, "a number and a sender"),
    ],
)
def test_everything_else_is_refused_with_a_reason(content: object, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        parse(content)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    _JSON | st.fixed_dictionaries({"cmd": st.sampled_from(["step", "run", "look"]) | _JSON, "args": _JSON})
)
def test_no_json_makes_another_error(content: Any) -> None:
    try:
        request = parse(content)
    except CommandError as refused:
        assert str(refused)
    else:
        assert request.command.cmd in ("step", "run", "look")

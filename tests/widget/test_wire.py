"""A page asks only for what is on the list, and every mistake of one is an error with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.widget.wire import MOST_STEPS, Request, WireError, parse


@pytest.mark.parametrize(
    ("cmd", "args"),
    [
        ("hello", {}),
        ("resync", {}),
        ("look", {"visible": True}),
        ("run", {}),
        ("pause", {}),
        ("stop", {}),
        ("step", {"n": 1}),
        ("step", {"n": MOST_STEPS}),
        ("step_epoch", {}),
        ("rewind", {"n": 3}),
        ("save", {}),
        ("restore", {"label": "3-117"}),
        ("epochs", {"n": 20}),
        ("breakpoint", {"name": "NonFinite", "on": False}),
        ("inspect", {"rank": 0}),
        ("inspect", {"rank": 63}),
        ("rewind_to", {"step": 0}),
        ("rewind_to", {"step": 3 * MOST_STEPS}),
    ],
)
def test_what_a_page_may_ask_for(cmd: str, args: dict[str, Any]) -> None:
    assert parse({"cmd": cmd, "args": args, "seq": 7, "client": "a"}) == Request(cmd, args, 7, "a")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "an object"),
        ([], "an object"),
        ({}, "no request 'None'"),
        ({"cmd": "fit"}, "no request 'fit'"),
        ({"cmd": "__init__"}, "no request"),
        ({"cmd": ["run"]}, "no request"),
        ({"cmd": "run", "args": {"n": 1}}, "takes no arguments"),
        ({"cmd": "run", "args": None}, "takes no arguments"),
        ({"cmd": "step"}, "takes n"),
        ({"cmd": "step", "args": {"n": 0}}, "n of step"),
        ({"cmd": "step", "args": {"n": True}}, "n of step"),
        ({"cmd": "step", "args": {"n": 1.0}}, "n of step"),
        ({"cmd": "step", "args": {"n": MOST_STEPS + 1}}, "n of step"),
        ({"cmd": "step", "args": {"n": "1; import os"}}, "n of step"),
        ({"cmd": "restore", "args": {"label": ""}}, "label of restore"),
        ({"cmd": "restore", "args": {"label": "x" * 201}}, "label of restore"),
        ({"cmd": "look", "args": {"visible": 1}}, "visible of look"),
        ({"cmd": "breakpoint", "args": {"name": "NonFinite()"}}, "takes name, on"),
        ({"cmd": "breakpoint", "args": {"name": "NonFinite()", "on": "yes"}}, "on of breakpoint"),
        ({"cmd": "breakpoint", "args": {"name": 1, "on": True}}, "name of breakpoint"),
        ({"cmd": "inspect"}, "takes rank"),
        ({"cmd": "inspect", "args": {"rank": 0, "batch": "next"}}, "takes rank"),
        ({"cmd": "inspect", "args": {"rank": -1}}, "rank of inspect"),
        ({"cmd": "inspect", "args": {"rank": 1.0}}, "rank of inspect"),
        ({"cmd": "inspect", "args": {"rank": True}}, "rank of inspect"),
        ({"cmd": "inspect", "args": {"rank": "1"}}, "rank of inspect"),
        ({"cmd": "inspect", "args": {"rank": 2**53}}, "rank of inspect"),
        ({"cmd": "rewind_to", "args": {"step": -1}}, "step of rewind_to"),
        ({"cmd": "rewind_to", "args": {"step": 2.0}}, "step of rewind_to"),
        ({"cmd": "rewind_to", "args": {"step": True}}, "step of rewind_to"),
        ({"cmd": "rewind_to", "args": {"step": 2**53}}, "step of rewind_to"),
        ({"cmd": "run", "args": {}, "seq": "1"}, "a number and a sender"),
        ({"cmd": "run", "args": {}, "client": 5}, "a number and a sender"),
        ({"cmd": "run", "args": {}, "client": "x" * 201}, "a number and a sender"),
    ],
)
def test_everything_else_is_refused_with_a_reason(content: object, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
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
    except WireError as refused:
        assert str(refused)
    else:
        assert request.cmd in ("step", "run", "look")

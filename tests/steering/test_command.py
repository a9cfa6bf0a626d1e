"""A run is steered by commands out of one list, and every mistake in one is an error with a reason."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.steering.command import ARGUMENTS, MOST_STEPS, Command, CommandError, checked, typed

NAMES = (*ARGUMENTS, "set")
counts, places = st.integers(1, MOST_STEPS), st.integers(0, 2**53 - 1)
words = st.text(string.ascii_letters + string.digits + "()-_.=", min_size=1, max_size=200)
rates = st.floats(0, 1e6) | st.integers(0, 1000)
changes = st.dictionaries(
    st.just("lr") | st.integers(0, 9999).map("lr[{}]".format), rates, max_size=20
).flatmap(
    lambda found: (
        (st.just(found) if found else st.nothing())
        | st.integers(1, 1 << 31).map(lambda number: {**found, "num_epochs": number})
    )
)
commands = (
    st.sampled_from([name for name, arguments in ARGUMENTS.items() if not arguments]).map(Command)
    | st.builds(lambda cmd, n: Command(cmd, {"n": n}), st.sampled_from(["step", "rewind"]), counts)
    | st.builds(lambda step: Command("rewind_to", {"step": step}), places)
    | st.builds(lambda rank: Command("inspect", {"rank": rank}), places)
    | st.just(Command("verify"))
    | st.builds(lambda label: Command("restore", {"label": label}), words)
    | st.builds(lambda name, on: Command("breakpoint", {"name": name, "on": on}), words, st.booleans())
    | changes.map(lambda found: Command("set", found))
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(commands)
def test_a_command_of_the_list_passes_as_it_is(command):
    assert checked(command.cmd, dict(command.args)) == command


@given(commands)
def test_a_command_can_be_typed_as_it_is_printed(command):
    assert typed(str(command).split()) == command


@given(st.sampled_from(NAMES) | anything, anything)
def test_whatever_comes_is_a_command_of_the_list_or_refused(cmd, args):
    try:
        command = checked(cmd, args)
    except CommandError as refused:
        assert str(refused).strip() and "\n" not in str(refused)
        return
    assert command.cmd in NAMES and command.args is args
    if command.cmd == "set":
        assert args and all(name == "num_epochs" or name.startswith("lr") for name in args)
    else:
        assert args.keys() == ARGUMENTS[cmd].keys()


@given(st.lists(st.sampled_from(NAMES) | st.text(string.printable, max_size=12), max_size=4))
def test_typed_words_are_a_command_or_refused_in_one_line(typed_words):
    try:
        assert typed(typed_words).cmd in NAMES
    except CommandError as refused:
        assert str(refused).strip() and "\n" not in str(refused)


@pytest.mark.parametrize(
    ("cmd", "args", "reason"),
    [
        ("fit", {}, "there is no command 'fit'; there are status, run"),
        (None, {}, "there is no command 'None'"),
        (["run"], {}, "there is no command"),
        ("__init__", {}, "there is no command"),
        ("pause", [], "the arguments of pause are an object"),
        ("run", None, "the arguments of run are an object"),
        ("run", {"n": 1}, "run takes no arguments"),
        ("step", {}, "step takes n"),
        ("step", {"n": 0}, "step takes n, a whole number from 1 to 1000000"),
        ("step", {"n": True}, "step takes n, a whole number"),
        ("step", {"n": 1.0}, "step takes n, a whole number"),
        ("step", {"n": MOST_STEPS + 1}, "step takes n, a whole number"),
        ("step", {"n": "1; import os"}, "step takes n, a whole number"),
        ("rewind", {"n": -1}, "rewind takes n, a whole number"),
        ("restore", {"label": ""}, "restore takes label, a name"),
        ("restore", {"label": "x" * 201}, "restore takes label, a name"),
        ("breakpoint", {"name": "NonFinite()"}, "breakpoint takes name, on"),
        ("breakpoint", {"name": "NonFinite()", "on": "yes"}, "breakpoint takes on, on or off"),
        ("breakpoint", {"name": 1, "on": True}, "breakpoint takes name, a name"),
        ("inspect", {"rank": 0, "batch": "next"}, "inspect takes rank"),
        ("inspect", {"rank": -1}, "inspect takes rank, a whole number from 0"),
        ("inspect", {"rank": 1.0}, "inspect takes rank"),
        ("inspect", {"rank": True}, "inspect takes rank"),
        ("inspect", {"rank": 2**53}, "inspect takes rank"),
        ("rewind_to", {"step": -1}, "rewind_to takes step, a whole number from 0"),
        ("rewind_to", {"step": 2.0}, "rewind_to takes step"),
        ("rewind_to", {"step": 2**53}, "rewind_to takes step"),
        ("set", {}, "set needs something to set"),
        ("set", {"lr": float("nan")}, "lr must be a number of at least 0"),
        ("set", {"lr": float("inf")}, "lr must be a number of at least 0"),
        ("set", {"lr": -0.1}, "lr must be a number of at least 0"),
        ("set", {"lr": "0.1"}, "lr must be a number of at least 0"),
        ("set", {"lr": True}, "lr must be a number of at least 0"),
        ("set", {"lr[-1]": 1}, "cannot be set; lr, lr\\[1\\]"),
        ("set", {"lr[1]x": 1}, "cannot be set"),
        ("set", {"nesterov": 1}, "'nesterov' cannot be set"),
        ("set", {"momentum": 1}, "momentum must be less than 1"),
        ("set", {"weight_decay[0]": -1}, r"weight_decay\[0\] must be a number of at least 0"),
        ("set", {"num_epochs": 0}, "num_epochs must be a whole number from 1"),
        ("set", {"num_epochs": 2.5}, "num_epochs must be a whole number from 1"),
    ],
)
def test_a_command_that_cannot_be_is_refused_with_the_reason(cmd, args, reason):
    with pytest.raises(CommandError, match=reason):
        checked(cmd, args)


@pytest.mark.parametrize(
    ("typed_words", "reason"),
    [
        ([], "there is no command ''"),
        (["fly"], "there is no command 'fly'"),
        (["pause", "now"], "pause takes nothing after it"),
        (["step", "1", "2"], "step takes n, a whole number from 1 to 1000000 after it"),
        (["step", "-1"], "from 1 to 1000000"),
        (["restore"], "restore takes label, a name of 1 to 200 characters after it"),
        (["breakpoint", "NonFinite", "maybe"], "breakpoint takes on, on or off"),
        (["set", "lr"], "'lr' is not a name=value pair"),
        (["set", "lr=fast"], "lr must be a number of at least 0, not 'fast'"),
    ],
)
def test_a_wrong_line_says_what_would_be_right(typed_words, reason):
    with pytest.raises(CommandError) as caught:
        typed(typed_words)
    assert reason in str(caught.value)


def test_a_number_of_steps_is_one_where_none_is_typed():
    assert typed(["step"]) == Command("step", {"n": 1}) and typed(["rewind"]) == Command("rewind", {"n": 1})

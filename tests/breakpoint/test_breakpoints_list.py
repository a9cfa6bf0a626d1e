"""The list of a learner's breakpoints."""

from __future__ import annotations

import pytest

from notebook_learner.breakpoint import AtStep, Breakpoints, NonFinite


def test_names_are_unique_and_found_by_name_and_number():
    breakpoints = Breakpoints()
    first, second = breakpoints.add(NonFinite()), breakpoints.add(NonFinite())
    assert [each.name for each in breakpoints] == ["NonFinite()", "NonFinite() 2"]
    assert breakpoints[1] is first and breakpoints["NonFinite() 2"] is second
    with pytest.raises(KeyError, match="no breakpoint 'x'; there are: NonFinite"):
        breakpoints["x"]


def test_one_that_is_once_switches_itself_off():
    breakpoints = Breakpoints()
    each = breakpoints.add(AtStep(3), once=True, name="mine")
    assert repr(each) == "mine (once)"
    each.hit()
    assert (each.on, each.hits) == (False, 1)
    assert repr(breakpoints) == "1. mine (once, off, hit once)"


def test_every_change_is_counted():
    breakpoints = Breakpoints()
    each = breakpoints.add(AtStep(3))
    seen = [breakpoints.changes]
    each.on = False
    seen.append(breakpoints.changes)
    breakpoints.remove(each)
    seen.append(breakpoints.changes)
    breakpoints.add(AtStep(1))
    breakpoints.clear()
    seen.append(breakpoints.changes)
    assert seen == sorted(set(seen)) and len(breakpoints) == 0


@pytest.mark.parametrize("wrong", [NonFinite, 3, "NonFinite", None])
def test_what_is_no_condition_is_refused(wrong):
    with pytest.raises(TypeError, match=r"a condition such as NonFinite\(\)"):
        Breakpoints().add(wrong)


def test_it_can_be_removed_by_name_and_by_number():
    breakpoints = Breakpoints()
    breakpoints.add(AtStep(1))
    breakpoints.add(AtStep(2))
    breakpoints.remove("AtStep(2)")
    breakpoints.remove(1)
    assert list(breakpoints) == []
    assert "breakpoints.add(NonFinite())" in repr(breakpoints)

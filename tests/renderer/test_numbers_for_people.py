"""Numbers, durations and rates as people read them."""

from __future__ import annotations

import doctest
import math

import pytest

from notebook_learner.renderer import plain, text
from notebook_learner.renderer.text import duration, number, percent, rate, remaining


@pytest.mark.parametrize("module", [text, plain])
def test_the_examples_in_the_documentation_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, "0.5000"),
        (91.20384, "91.20"),
        (100, "100.0"),
        (1234.5, "1,234"),
        (9999.96, "10,000"),
        (123456.7, "123,457"),
        (1234567, "1.235e6"),
        (0.01, "0.01000"),
        (0.001, "1e-3"),
        (0.00999996, "0.01000"),
        (-0.000123456, "-1.235e-4"),
        (-0.0, "0"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1e-320, "1e-320"),
    ],
)
def test_a_value_has_four_significant_digits(value, shown):
    assert number(value) == shown


def test_a_unit_follows_its_value_also_when_it_is_no_number():
    assert number(12.3456, "%") == "12.35 %"
    assert number(math.nan, "%") == "NaN %"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.9999, "1.0 s"),
        (9.99, "10 s"),
        (59.7, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (86400 * 2 + 3600 * 3, "2 d 03 h"),
        (math.nan, "?"),
        (math.inf, "?"),
        (-1, "?"),
    ],
)
def test_a_duration_never_says_sixty(seconds, shown):
    assert duration(seconds) == shown


def test_time_left_is_no_more_exact_than_an_estimate():
    assert [remaining(s) for s in (0.2, 1.2, 9.7, 90)] == ["< 1 s", "1 s", "10 s", "1 min 30 s"]


def test_slow_rates_count_per_minute_and_fast_ones_are_shortened():
    assert rate(0.05, "steps") == "3.0 steps/min"
    assert rate(999.9, "steps") == "1.0k steps/s"
    assert rate(2.5e6, "samples") == "2.5M samples/s"
    assert rate(math.inf, "steps") == "? steps/s"


def test_a_hundred_percent_means_done():
    assert [percent(share) for share in (0.0, 0.9999, 0.29, 1.0, 1.7)] == [
        "0 %",
        "99 %",
        "29 %",
        "100 %",
        "100 %",
    ]

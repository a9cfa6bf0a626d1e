"""A panel's curves: bounded, whole, and no spike is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.event import Column, MetricBlock, SplitRecord
from notebook_learner.widget import curves
from notebook_learner.widget.curves import LIMIT, MOST_NEW, Curves, CurveSeries


def filled(values: list[float], cuts: list[int], limit: int) -> CurveSeries:
    """A series that was given its values in pieces."""
    series, at = CurveSeries(limit), 0
    for cut in [*sorted(cut % (len(values) + 1) for cut in cuts), len(values)]:
        series.add(np.arange(at + 1.0, cut + 1.0), np.array(values[at:cut]))
        at = max(at, cut)
    return series


NUMBERS = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(NUMBERS, max_size=300), st.lists(st.integers(0, 300), max_size=5), st.integers(2, 16))
def test_buckets_are_those_of_all_values_however_they_came(
    values: list[float], cuts: list[int], limit: int
) -> None:
    series = filled(values, cuts, limit)
    x, low, high, mean = series.columns()
    assert len(series) <= limit
    size = series.size
    parts = [np.array(values[start : start + size]) for start in range(0, len(values), size)]
    assert x.tolist() == [start + 1.0 for start in range(0, len(values), size)]
    known = [part[~np.isnan(part)] for part in parts]
    assert low.tolist() == pytest.approx([p.min() if len(p) else np.nan for p in known], nan_ok=True, abs=0)
    assert high.tolist() == pytest.approx([p.max() if len(p) else np.nan for p in known], nan_ok=True, abs=0)
    assert np.isnan(mean).tolist() == [not len(part) for part in known]
    inside = ~np.isnan(mean)
    slack = 1e-6 * np.abs(high[inside]) + 1e-6
    assert ((low[inside] - slack <= mean[inside]) & (mean[inside] <= high[inside] + slack)).all()


def test_the_mean_is_that_of_the_bucket() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    series = CurveSeries(64)
    for start in range(0, 10_000, 7):
        series.add(np.arange(start + 1.0, min(start + 7, 10_000) + 1), values[start : start + 7])
    whole = values[: len(values) // series.size * series.size].reshape(-1, series.size)
    assert np.allclose(series.columns()[3][: len(whole)], whole.mean(axis=1))


def test_a_million_steps_are_as_many_buckets_and_the_spike_is_there() -> None:
    values = np.zeros(1_000_000)
    values[123_456] = 99.0
    series = CurveSeries()
    for start in range(0, len(values), 10_000):
        series.add(np.arange(start + 1.0, start + 10_001.0), values[start : start + 10_000])
    assert LIMIT / 2 <= len(series) <= LIMIT
    assert series.columns()[2].max() == 99.0
    assert len(series.tobytes()) == 4 * 8 * len(series)


def test_a_pass_moves_its_point_until_the_next_one() -> None:
    series = CurveSeries()
    series.put(10.0, 0.5)
    series.put(10.0, 0.4)
    series.put(20.0, 0.3)
    assert [column.tolist() for column in series.columns()] == [[10, 20], [0.4, 0.3], [0.4, 0.3], [0.4, 0.3]]


def block(
    first: int, values: list[float], weights: list[float] | None = None, **more: list[float]
) -> MetricBlock:
    columns = {"Loss": Column(np.array(values), None if weights is None else np.array(weights))}
    columns |= {name: Column(np.array(given), np.ones(len(given))) for name, given in more.items()}
    return MetricBlock(1, "train", first, len(values), first + len(values) - 1, columns, {}, 0.1)


def test_steps_without_a_value_leave_none() -> None:
    curves = Curves()
    curves.block(block(1, [1.0, 2.0, 3.0], [1, 0, 1]), {"Loss"})
    curves.block(block(4, [4.0, float("nan")]), {"Loss"})
    x, *_ = curves.series["Loss", "train"].columns()
    assert x.tolist() == [1, 3, 4]


def test_news_are_told_once() -> None:
    curves = Curves()
    curves.block(block(1, [1.0, 2.0], [1, 1], Other=[5, 6]), {"Loss"})
    curves.point("Loss", "valid", 2.0, 0.5)
    told = {key: (x.tolist(), values.tolist()) for key, x, values in curves.fresh()}
    assert told == {("Loss", "train"): ([1, 2], [1, 2]), ("Loss", "valid"): ([2], [0.5])}
    assert curves.fresh() == []


@pytest.mark.parametrize("count", [4097, 4098, 4099, 50_000])
def test_very_many_news_are_thinned_without_losing_a_spike_up_or_down(count: int) -> None:
    curves, values = Curves(), np.zeros(count)
    values[[321, -1]], values[[3000, -5]] = 7.0, -7.0
    curves.block(block(1, values.tolist(), [1.0] * count), {"Loss"})
    ((_, x, told),) = curves.fresh()
    assert len(x) <= MOST_NEW
    assert (np.diff(x) >= 0).all() and x[-1] <= count
    page = dict(zip(x.tolist(), told.tolist(), strict=True))  # which replaces a point that comes again
    assert sorted(value for value in page.values() if value) == [-7.0, -7.0, 7.0, 7.0]


def test_what_was_measured_before_is_rebuilt() -> None:
    blocks = (block(1, [1.0, 2.0], [1, 1]), block(3, [3.0], [1]))
    record = (SplitRecord(1, "train", blocks), SplitRecord(1, "valid", (), {"Loss": 0.25, "Other": 1.0}))
    live, rebuilt = Curves(), Curves()
    for each in blocks:
        live.block(each, {"Loss"})
    live.point("Loss", "valid", 3.0, 0.25)
    rebuilt.rebuild(record, {"train": {"Loss"}, "valid": {"Loss"}})
    assert rebuilt.series.keys() == live.series.keys()
    for key in live.series:
        assert rebuilt.series[key].tobytes() == live.series[key].tobytes()
    assert rebuilt.fresh() == []


def test_points_are_put_into_buckets_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped, calls = curves._grouped, []

    def counted(*given: object) -> object:
        calls.append(given)
        return grouped(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(curves, "_grouped", counted)
    series = CurveSeries()
    for step in range(40_000):
        series.add(np.array([step + 1.0]), np.array([float(step)]))
    assert len(calls) < 10
    assert series.columns()[2].max() == 39_999.0

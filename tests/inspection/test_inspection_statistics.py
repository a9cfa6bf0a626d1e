"""Statistics and histograms against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from notebook_learner.inspection import statistics as module
from notebook_learner.inspection.statistics import BINS, bring_over, look_at


def test_they_are_numpys_for_finite_values():
    values = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 3 + 100
    statistics, histogram = look_at([values])
    want = values.double().numpy()
    assert statistics.count == 35
    assert statistics.mean == pytest.approx(want.mean(), rel=1e-12)
    assert statistics.std == pytest.approx(want.std(), rel=1e-9)
    assert (statistics.min, statistics.max) == (want.min(), want.max())
    assert statistics.norm == pytest.approx(np.linalg.norm(want), rel=1e-12)
    counts, edges = np.histogram(want, bins=BINS)
    assert histogram.counts == tuple(counts)
    assert (histogram.low, histogram.high) == (edges[0], edges[-1])


@given(
    arrays.arrays(
        np.float32,
        st.integers(0, 40),
        elements=st.floats(width=32, allow_subnormal=False),
    )
)
def test_any_values_are_described_by_their_finite_ones(values):
    statistics, histogram = look_at([torch.from_numpy(values)])
    finite = values[np.isfinite(values)].astype(np.float64)
    assert statistics.nan == np.isnan(values).sum()
    assert statistics.inf == np.isinf(values).sum()
    assert statistics.count == len(values)
    if not len(finite):
        assert histogram is None
        assert math.isnan(statistics.mean)
        return
    assert statistics.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-9 * np.abs(finite).max())
    assert (statistics.min, statistics.max) == (finite.min(), finite.max())
    assert statistics.zeros * len(values) == pytest.approx((values == 0).sum())
    assert sum(histogram.counts) == len(finite)


def test_chunks_are_joined_without_losing_a_small_spread(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", {"cpu": 7})
    values = 1e6 + torch.randn(100, dtype=torch.float64)
    statistics, histogram = look_at([values[:30].reshape(5, 6), values[30:]])
    assert statistics.std == pytest.approx(values.std(correction=0).item(), rel=1e-6)
    assert statistics.mean == pytest.approx(values.mean().item(), rel=1e-12)
    assert histogram.counts == tuple(np.histogram(values.numpy(), bins=BINS)[0])


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn],
)
def test_every_kind_of_number_is_read(dtype):
    statistics, _ = look_at([torch.tensor([0.0, 1.0, 1.0, 1.0]).to(dtype)])
    assert (statistics.mean, statistics.min, statistics.max, statistics.zeros) == (0.75, 0, 1, 0.25)


def test_complex_numbers_count_by_magnitude():
    statistics, _ = look_at([torch.tensor([3 + 4j, 0j])])
    assert (statistics.min, statistics.max, statistics.zeros) == (0, 5, 0.5)


def test_a_sparse_gradient_counts_a_row_once():
    sparse = torch.sparse_coo_tensor([[1, 1]], [[1.0, 2.0], [3.0, 4.0]], (5, 2), check_invariants=True)
    statistics, _ = look_at([sparse])
    assert (statistics.count, statistics.min, statistics.max) == (2, 4, 6)


@pytest.mark.parametrize("tensors", [[], [torch.empty(3, device="meta")]])
def test_what_has_no_values_has_no_statistics(tensors):
    assert look_at(tensors) is None


def test_equal_values_stand_in_the_middle_of_their_histogram():
    _, histogram = look_at([torch.full((9,), 2.0)])
    assert histogram.counts == tuple(np.histogram(np.full(9, 2.0), bins=BINS)[0])
    assert (histogram.low, histogram.high) == (1.5, 2.5)


def test_a_mean_survives_half_precision():
    statistics, _ = look_at([torch.full((100_000,), 60_000.0, dtype=torch.float16)])
    assert statistics.mean == 60_000


def test_norms_of_what_is_not_finite_are_not_finite():
    assert math.isnan(look_at([torch.tensor([1.0, math.nan])])[0].norm)
    assert look_at([torch.tensor([1.0, -math.inf])])[0].norm == math.inf


def test_scaled_values_have_scaled_statistics():
    values = torch.randn(50)
    (one, spread), (other, other_spread) = look_at([values * 1024]), look_at([values])
    assert one.scaled(1 / 1024) == other
    assert spread.scaled(1 / 1024) == other_spread


def test_small_tensors_come_over_as_they_are():
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7), torch.empty(0)]
    found = bring_over(tensors)
    assert [one.shape for one in found] == [(2, 3), (), (0,)]
    assert found[0].tolist() == [[0, 1, 2], [3, 4, 5]]

"""Small blocks of metric values become one, row by row the same."""

from __future__ import annotations

import numpy as np
import pytest

from notebook_learner.event import Column, MetricBlock
from notebook_learner.event import record as module
from notebook_learner.event.record import joined


def block_of(first, count, metrics, *, seed=0, texts=None):
    """Loss-like metrics weigh by samples; the second one by something of its own; the third is a reading."""
    rng = np.random.default_rng((seed, first))
    samples, tokens = rng.integers(1, 9, (2, count)).astype(float)
    weights = [samples, tokens, None] + [samples.copy() for _ in range(metrics)]
    columns = {f"metric {at}": Column(rng.random(count), weights[at]) for at in range(metrics)}
    return MetricBlock(1, "train", first, count, first + count - 1, columns, texts or {}, 0.5)


def blocks_of(counts, metrics):
    firsts = np.cumsum([1, *counts[:-1]])
    return [block_of(int(first), count, metrics) for first, count in zip(firsts, counts, strict=True)]


@pytest.mark.parametrize("metrics", [0, 1, 3, 5])
@pytest.mark.parametrize("counts", [[1] * 7, [1, 1, 4, 1], [3, 2], [1]], ids=str)
def test_the_joint_block_has_the_rows_of_all(counts, metrics):
    blocks = blocks_of(counts, metrics)
    (joint,) = joined(blocks)
    assert (joint.first, joint.count, joint.iteration) == (1, sum(counts), sum(counts))
    assert joint.seconds == 0.5 * len(counts)
    assert list(joint.columns) == [f"metric {at}" for at in range(metrics)]
    for name, column in joint.columns.items():
        parts = [block.columns[name] for block in blocks]
        np.testing.assert_array_equal(column.values, np.concatenate([part.values for part in parts]))
        if column.weights is None:
            assert {part.weights for part in parts} == {None}
        else:
            np.testing.assert_array_equal(column.weights, np.concatenate([part.weights for part in parts]))


def test_metrics_in_another_order_are_joined_by_name():
    one, other = blocks_of([1, 1], 4)
    turned = dict(reversed(other.columns.items()))
    other = MetricBlock(1, "train", 2, 1, 2, turned, {}, 0.5)
    (joint,) = joined([one, other])
    for name, column in joint.columns.items():
        assert column.values.tolist() == [*one.columns[name].values, *turned[name].values]


def test_values_of_another_kind_of_number_are_joined_as_numbers():
    blocks = [
        MetricBlock(1, "train", at, 1, at, {"Loss": Column(np.array([at]), np.array([2]))}, {}, 0.1)
        for at in (1, 2)
    ]
    (joint,) = joined(blocks)
    assert joint.columns["Loss"].values.tolist() == [1, 2]


def test_what_are_no_neighbours_or_other_metrics_stays_apart():
    one, two, three, four = blocks_of([1, 1, 1, 1], 3)
    other = block_of(2, 1, 2)
    assert len(joined([one, two, four])) == 2
    assert len(joined([one, other, three])) == 3


def test_equal_weights_are_kept_once_and_hold_no_more_than_themselves():
    (joint,) = joined(blocks_of([1] * 100, 20))
    weights = [column.weights for column in joint.columns.values() if column.weights is not None]
    assert len({id(each) for each in weights}) == 2
    assert all(each.base is None and not each.flags.writeable for each in weights)


def test_blocks_of_one_step_are_joined_without_a_call_for_each_metric(monkeypatch):
    blocks, calls, concatenate = blocks_of([1] * 256, 20), [], np.concatenate
    monkeypatch.setattr(module.np, "concatenate", lambda *given: calls.append(given) or concatenate(*given))
    (joint,) = joined(blocks)
    assert joint.count == 256
    assert not calls

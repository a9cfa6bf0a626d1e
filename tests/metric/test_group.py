"""The group: what is collected is read once, sums do not depend on the blocks, state goes round."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.errors import StateError, StepError
from notebook_learner.metric import (
    Accuracy,
    CudaMetric,
    IterationSpeed,
    LearningRate,
    Loss,
    Metric,
    MetricGroup,
    Reading,
    TextMetric,
)


class Pair(Metric):
    """Value and weight come with the item."""

    name = "Pair"

    def update(self, item):
        return item.value, item.share


class Deviation(Metric):
    """An epoch value that is no mean of steps: the standard deviation of everything seen."""

    name = "Deviation"

    def __init__(self):
        self.reset()

    def reset(self):
        self.sums = torch.zeros(3, dtype=torch.float64)

    def update(self, item):
        self.sums += torch.stack([item.value * 0 + 1, item.value, item.value**2])
        return float("nan"), 0

    def compute(self):
        count, total, squares = self.sums
        return (squares / count - (total / count) ** 2).sqrt()

    def state_dict(self):
        return {"sums": self.sums, "note": "plain", "nested": [{"n": np.int64(1)}, (2, None, True)]}

    def load_state_dict(self, state):
        assert state["nested"] == [{"n": 1}, [2, None, True]]
        self.sums = state["sums"]


def pairs(values, shares):
    return [SimpleNamespace(value=v, share=w) for v, w in zip(values, shares, strict=True)]


def run(group, items, cuts=()):
    for step, item in enumerate(items, start=1):
        group.collect(item)
        if step in cuts:
            group.read()
    group.read()
    return group.finals()


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
shares = st.one_of(st.integers(0, 100), st.floats(0, 10))


@given(st.lists(st.tuples(numbers, shares), min_size=1, max_size=40), st.sets(st.integers(1, 40)))
def test_the_epoch_is_the_same_bit_for_bit_however_the_steps_are_cut_into_blocks(steps, cuts):
    items = pairs(*zip(*steps, strict=True))
    straight = run(MetricGroup([Pair()]), items)["Pair"]
    in_blocks = run(MetricGroup([Pair()]), items, cuts)["Pair"]
    assert np.float64(straight).tobytes() == np.float64(in_blocks).tobytes()


@given(st.integers(0, 2**31), st.sets(st.integers(1, 300), max_size=20))
def test_long_epochs_too(seed, cuts):
    """Long enough for numpy's own sum() to add in pairs, and to give other last bits."""
    random = np.random.default_rng(seed)
    items = pairs(random.normal(size=300).tolist(), random.integers(1, 64, size=300).tolist())
    total = weight = 0.0
    for item in items:
        total += item.value * item.share
        weight += item.share
    assert run(MetricGroup([Pair()]), items, cuts) == {"Pair": total / weight}


@given(st.integers(0, 2**31), st.integers(1, 29))
def test_a_state_from_mid_epoch_goes_on_to_the_same_bits(seed, stop):
    def group():
        return MetricGroup([Pair(), Deviation(), IterationSpeed()])

    def attached():
        made = group()
        made.attach(SimpleNamespace(steps_per_second=1.0))
        return made

    random = np.random.default_rng(seed)
    items = pairs(torch.tensor(random.normal(size=30)), random.integers(0, 9, size=30).tolist())
    first, second = attached(), attached()
    run(first, items[:stop])
    state = first.state_dict()
    expected = run(first, items[stop:])
    second.load_state_dict(state)
    assert run(second, items[stop:]) == pytest.approx(expected, abs=0, rel=0, nan_ok=True)
    second.reset()
    second.load_state_dict(state)
    again = run(second, items[stop:])
    assert again == pytest.approx(expected, abs=0, rel=0, nan_ok=True), "a state serves more than once"


def test_a_state_is_plain_and_does_not_change_with_later_steps():
    group = MetricGroup([Pair(), Deviation()])
    run(group, pairs(torch.tensor([1.0, 2.0]), [1, 3]))
    state = group.state_dict()
    run(group, pairs(torch.tensor([5.0]), [1]))
    assert state["sums"] == {"Pair": [7.0, 4.0], "Deviation": [0.0, 0.0]}
    assert state["metrics"]["Deviation"]["sums"].tolist() == [2.0, 3.0, 5.0]
    assert state["metrics"]["Deviation"]["nested"] == [{"n": 1}, [2, None, True]]
    assert state["metrics"]["Pair"] == {}


def test_a_state_that_no_checkpoint_could_keep_is_refused():
    class Odd(Pair):
        def state_dict(self):
            return {"seen": {1, 2}}

    with pytest.raises(StateError, match=r"Pair.state_dict\(\) holds a set.*use tensors"):
        MetricGroup([Odd()]).state_dict()


def test_a_state_of_other_metrics_is_refused_and_changes_nothing():
    group = MetricGroup([Pair()])
    run(group, pairs([1.0], [1]))
    with pytest.raises(StateError, match=r"belong to the metrics \['Loss'\], but this split has \['Pair'\]"):
        group.load_state_dict(MetricGroup([Loss()]).state_dict())
    assert group.finals() == {"Pair": 1.0}


@pytest.mark.parametrize("question", [MetricGroup.finals, MetricGroup.state_dict])
def test_unread_steps_must_be_read_before_the_epoch_is_asked_for(question):
    group = MetricGroup([Pair()])
    group.collect(pairs([1.0], [1])[0])
    with pytest.raises(RuntimeError, match=r"1 collected steps are not read yet.*call read\(\) first"):
        question(group)
    with pytest.raises(RuntimeError, match="not read yet"):
        group.load_state_dict({"sums": {"Pair": [0.0, 0.0]}, "metrics": {"Pair": {}}})
    group.read()
    assert question(group)


def test_reading_takes_each_step_once():
    group = MetricGroup([Pair()])
    group.collect(pairs([1.0], [2])[0])
    group.collect(pairs([3.0], [4])[0])
    assert group.pending == 2
    columns, texts = group.read()
    assert columns["Pair"].values.tolist() == [1.0, 3.0]
    assert columns["Pair"].weights.tolist() == [2.0, 4.0]
    assert columns["Pair"].values.dtype == columns["Pair"].weights.dtype == np.float64
    assert texts == {}
    assert group.pending == 0
    assert group.read() == ({}, {})


def test_metrics_that_weigh_alike_share_their_weights():
    other = Pair()
    other.name = "Other"
    group = MetricGroup([Pair(), other])
    for item in pairs([1.0, 3.0], [2, 4]):
        group.collect(item)
    columns, _ = group.read()
    assert columns["Pair"].weights is columns["Other"].weights
    assert columns["Pair"].weights.tolist() == [2.0, 4.0]


def test_steps_without_weight_have_no_value_and_poison_nothing():
    group = MetricGroup([Pair()])
    finals = run(group, pairs([float("nan"), 2.0, float("inf")], [0, 1, torch.tensor(0)]))
    assert finals == {"Pair": 2.0}


def test_an_epoch_without_any_weight_has_no_value():
    assert np.isnan(run(MetricGroup([Pair()]), pairs([1.0], [0]))["Pair"])
    assert np.isnan(MetricGroup([Accuracy()]).finals()["Accuracy"])


def test_an_epoch_value_may_come_from_the_metrics_own_counts():
    values = torch.arange(10, dtype=torch.float64)
    finals = run(MetricGroup([Deviation()]), pairs(values, [1] * 10), cuts={3})
    assert finals == {"Deviation": pytest.approx(np.std(np.arange(10)))}


def test_reset_begins_anew():
    group = MetricGroup([Pair(), Deviation()])
    run(group, pairs(torch.tensor([1.0, 5.0]), [1, 1]))
    group.collect(pairs([torch.tensor(9.0)], [1])[0])
    group.reset()
    assert group.pending == 0
    assert run(group, pairs(torch.tensor([2.0, 2.0]), [1, 1])) == {"Pair": 2.0, "Deviation": 0.0}


class Counter(Reading):
    name = "Counter"

    def __init__(self):
        self.asked = 0

    def sample(self):
        self.asked += 1
        return self.asked


class Line(TextMetric):
    name = "Line"

    def __init__(self):
        self.asked = 0

    def text(self):
        self.asked += 1
        return f"line {self.asked}"


def test_readings_and_texts_are_sampled_once_a_block():
    group = MetricGroup([Counter(), Line(), Pair()])
    for count in (3, 1):
        for item in pairs([0.5] * count, [1] * count):
            group.collect(item)
        columns, texts = group.read()
        assert list(columns) == ["Counter", "Pair"], "columns come in the order of registration"
        assert columns["Counter"].weights is None
        assert len(columns["Counter"].values) == len(columns["Pair"].values) == count
    assert columns["Counter"].values.tolist() == [2.0]
    assert texts == {"Line": "line 2"}
    assert list(group.finals()) == ["Pair"]


def test_a_group_of_readings_alone_still_counts_steps():
    group = MetricGroup([Counter()])
    group.collect(None)
    group.collect(None)
    assert group.pending == 2
    assert group.read()[0]["Counter"].values.tolist() == [1.0, 1.0]


def test_no_metrics_at_all_is_fine():
    group = MetricGroup([])
    group.collect(None)
    assert (group.pending, group.read(), group.finals()) == (1, ({}, {}), {})


def test_every_metric_gets_the_context(context):
    metrics = [Loss(), LearningRate(), CudaMetric(), IterationSpeed()]
    MetricGroup(metrics).attach(context)
    assert all(metric.context is context for metric in metrics)


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(ValueError, match="share a name"):
        MetricGroup([Accuracy(), Accuracy(pad_token=0)])


def test_updates_run_without_gradients_and_leave_the_mode_alone():
    modes = []

    class Mode(Pair):
        def update(self, item):
            modes.append(torch.is_grad_enabled())
            return 1.0, 1

    group = MetricGroup([Mode()])
    group.collect(None)
    group.collect(None)
    assert modes == [False, False]
    assert torch.is_grad_enabled()


def test_a_metric_that_forgets_to_detach_holds_no_graph():
    group = MetricGroup([Pair()])
    graphs = []
    for _ in range(3):
        parameter = torch.ones(4, requires_grad=True)
        graphs.append(weakref.ref(parameter))
        group.collect(SimpleNamespace(value=(parameter * 2).sum(), share=parameter.sum()))
    del parameter
    gc.collect()
    assert [graph() for graph in graphs] == [None, None, None]
    columns, _ = group.read()
    assert columns["Pair"].values.tolist() == [8.0] * 3
    assert columns["Pair"].weights.tolist() == [4.0] * 3


class Fragile(Pair):
    name = "Fragile"

    def update(self, item):
        if item.value == 13:
            raise item.error
        return super().update(item)


@pytest.mark.parametrize("error", [ValueError("unlucky"), RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 2])
def test_a_step_that_fails_in_one_metric_is_kept_by_none(at, error):
    group = MetricGroup([Pair(), Fragile()])
    items = pairs([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1])
    items.insert(at, SimpleNamespace(value=13, share=1, error=error))
    for step, item in enumerate(items):
        if step == at:
            with pytest.raises(type(error)) as raised:
                group.collect(item)
            assert raised.value is error
        else:
            group.collect(item)
    assert group.pending == 4
    columns, _ = group.read()
    assert columns["Pair"].values.tolist() == columns["Fragile"].values.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_reading_that_fails_takes_no_step_with_it():
    class Flaky(Counter):
        def sample(self):
            if super().sample() == 1:
                raise OSError("no sensor")
            return 1.0

    group = MetricGroup([Pair(), Flaky()])
    group.collect(pairs([2.0], [1])[0])
    with pytest.raises(OSError, match="no sensor"):
        group.read()
    assert group.read()[0]["Pair"].values.tolist() == [2.0]
    assert group.finals() == {"Pair": 2.0}


@pytest.mark.parametrize("method", ["values", "totals"])
def test_a_metric_that_does_not_keep_to_one_number_a_step_is_told(method):
    metric = Pair()
    setattr(metric, method, lambda raw, weights: raw.sum())
    group = MetricGroup([metric])
    group.collect(pairs([2.0], [1])[0])
    with pytest.raises(StepError, match=rf"Pair.{method} returned shape \(\) for 1 steps"):
        group.read()

"""What metrics that keep every sample cost a captured state: what came since the last one, and no more."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC
from torchmetrics.retrieval import RetrievalMAP

from notebook_learner.metric import AUCPR, AUROC, MetricGroup, TorchMetric, ranking, rows
from notebook_learner.metric.rows import Appended
from notebook_learner.state.state import tensors_in

ROWS, CLASSES = 50, 4


def classes(generator):
    return SimpleNamespace(
        output=torch.randn(ROWS, CLASSES, generator=generator),
        targets=torch.randint(CLASSES, (ROWS,), generator=generator),
    )


def labels(generator):
    targets = torch.randint(2, (ROWS, CLASSES), generator=generator)
    return SimpleNamespace(output=torch.randn(ROWS, CLASSES, generator=generator), targets=targets)


def answers(generator):
    return SimpleNamespace(
        output=torch.rand(ROWS, generator=generator), targets=torch.randint(2, (ROWS,), generator=generator)
    )


def retrieval():
    return TorchMetric(
        RetrievalMAP(), input=lambda item: (item.output, item.targets, torch.arange(len(item.output)) % 5)
    )


KEEPERS = [
    pytest.param(AUROC, classes, id="AUROC"),
    pytest.param(AUCPR, classes, id="AUCPR"),
    pytest.param(AUROC.binary, answers, id="AUROC.binary"),
    pytest.param(AUCPR.multilabel, labels, id="AUCPR.multilabel"),
    pytest.param(lambda: TorchMetric(BinaryAUROC()), answers, id="torchmetrics.BinaryAUROC"),
    pytest.param(lambda: TorchMetric(MulticlassAUROC(CLASSES)), classes, id="torchmetrics.MulticlassAUROC"),
    pytest.param(retrieval, answers, id="torchmetrics.RetrievalMAP"),
]
keepers = pytest.mark.parametrize(("make", "item"), KEEPERS)


class Copied(TorchDispatchMode):
    """Counts the bytes that operations write to other memory."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket._qualified_op_name.split("::")[-1] in ("clone", "copy_", "cat", "_to_copy"):
            self.bytes += result.nbytes
        return result


def filled(make, item, steps):
    """A group that has measured so many steps, and what goes on giving it some."""
    group, generator = MetricGroup([make()]), torch.Generator().manual_seed(0)

    def go_on(more):
        for _ in range(more):
            group.collect(item(generator))
        group.read()

    go_on(steps)
    return group, go_on


@keepers
def test_a_state_copies_what_came_since_the_last_one(make, item):
    costs = []
    for steps in (5, 200):
        group, go_on = filled(make, item, steps)
        group.state_dict()
        go_on(1)
        with Copied() as copied:
            group.state_dict()
        costs.append(copied.bytes)
    one = sum(each.nbytes for each in vars(item(torch.Generator())).values())
    assert costs[1] <= costs[0] <= 4 * one  # torchmetrics' numbers of indices, too, joined and put behind


@keepers
def test_states_of_one_epoch_lie_in_the_same_memory(make, item):
    group, go_on = filled(make, item, 20)
    states = []
    for _ in range(20):
        go_on(1)
        states.append(group.state_dict())
    pieces = {}
    for state in states:
        for tensor in tensors_in(state):
            pieces[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    last = sum(tensor.nbytes for tensor in tensors_in(states[-1]))
    assert sum(pieces.values()) <= 2.5 * last  # 15 times as much, were each a copy


@keepers
def test_going_on_from_a_state_copies_its_last_block_alone(make, item):
    group, go_on = filled(make, item, 200)
    state = group.state_dict()
    whole = sum(tensor.nbytes for tensor in tensors_in(state))
    go_on(1)
    with Copied() as copied:
        group.load_state_dict(state)
        go_on(1)
        group.state_dict()
    assert copied.bytes <= (1.1 * whole if make is retrieval else 0.7 * whole)


@keepers
def test_a_state_stays_what_it_was(make, item):
    group, go_on = filled(make, item, 3)
    first = group.state_dict()
    bits = copy.deepcopy(first)
    expected = group.finals()
    go_on(30)
    later = group.finals()
    for _ in range(3):  # back, and along another way each time, in the memory behind what is shared
        group.load_state_dict(first)
        assert group.finals() == expected
        go_on(7)
    group.reset()
    go_on(4)
    assert all(map(torch.equal, tensors_in(first), tensors_in(bits)))
    group.load_state_dict(first)
    assert group.finals() == expected != later


@keepers
def test_states_on_either_side_of_one_that_was_put_back_keep_their_rows(make, item):
    group, go_on = filled(make, item, 2)
    fork = group.state_dict()
    go_on(3)
    one, ends_at = group.state_dict(), group.finals()
    group.load_state_dict(fork)
    go_on(3)
    other_ends_at = group.finals()
    group.load_state_dict(one)
    assert group.finals() == ends_at != other_ends_at


@keepers
def test_batches_that_are_written_over_after_a_state_change_nothing(make, item):
    """A loader or a compiled model may use the same memory again."""
    group, _ = filled(make, item, 0)
    given = item(torch.Generator().manual_seed(3))
    group.collect(given)
    group.read()
    state, expected = group.state_dict(), group.finals()
    given.output.zero_()
    given.targets.zero_()
    group.load_state_dict(state)
    assert group.finals() == expected


@pytest.mark.parametrize("make", [AUROC, AUCPR, lambda: TorchMetric(MulticlassAUROC(CLASSES))])
def test_a_state_in_one_piece_as_earlier_versions_wrote_it_goes_on(make):
    group, go_on = filled(make, classes, 5)
    state = copy.deepcopy(group.state_dict())
    go_on(5)
    expected = group.finals()

    def joined(tree):
        if isinstance(tree, list) and tree and isinstance(tree[0], torch.Tensor):
            return [torch.cat(tree)]
        return {key: joined(value) for key, value in tree.items()} if isinstance(tree, dict) else tree

    again, generator = MetricGroup([make()]), torch.Generator().manual_seed(0)
    given = [classes(generator) for _ in range(10)]
    again.load_state_dict({**state, "metrics": joined(state["metrics"])})
    for each in given[5:]:
        again.collect(each)
    again.read()
    assert again.finals() == expected


def test_a_list_that_the_metric_writes_to_is_copied_anew():
    class Scores(RetrievalMAP):
        def compute(self):
            return torch.cat(self.preds).mean()

    metric = TorchMetric(Scores(), input=lambda item: (item.output, item.targets, item.targets.long()))
    group, _ = filled(lambda: metric, answers, 2)
    first, before = group.state_dict(), group.finals()
    metric.metric.preds[0].mul_(2)
    metric.metric._computed = None
    second, after = group.state_dict(), group.finals()
    assert before != after
    for state, expected in ((first, before), (second, after), (first, before)):
        group.load_state_dict(state)
        assert group.finals() == expected


def test_rows_lie_in_few_pieces_however_many_are_added():
    kept = Appended()
    for step in range(10_000):
        kept.append(torch.full((3,), float(step)))
    parts = [part for (part,) in kept.parts()]
    assert len(parts) < 20
    assert torch.equal(torch.cat(parts), torch.arange(10_000.0).repeat_interleave(3))


def test_rows_of_another_kind_begin_a_piece_of_their_own():
    kept = Appended()
    rows = [torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, 3), torch.ones(0, 3)]
    for each in rows:
        kept.append(each)
    found = [part for (part,) in kept.parts()]
    assert [(part.dtype, part.shape) for part in found] == [(each.dtype, each.shape) for each in rows[:3]]


def test_rows_kept_while_gradients_are_impossible_are_added_to_later():
    kept = Appended()
    with torch.inference_mode():
        kept.append(torch.ones(4))
        kept.append(torch.ones(4))
        (held, *_) = kept.parts()[-1]
    kept.append(torch.zeros(4))
    assert torch.cat([part for (part,) in kept.parts()]).tolist() == [1.0] * 8 + [0.0] * 4
    assert held.tolist() == [1.0] * 8


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=12),
    looks=st.sets(st.integers(0, 11)),
    back=st.integers(0, 11),
)
def test_where_a_piece_ends_depends_on_the_rows_alone(sizes, looks, back):
    rows = torch.arange(sum(sizes)).split(sizes) if sizes else ()
    straight, other = Appended(), Appended()
    for place, each in enumerate(rows):
        straight.append(each)
        other.append(each)
        if place in looks:
            other.parts()
        if place == back:
            other = Appended(other.parts())
    assert [part.tolist() for (part,) in other.parts()] == [part.tolist() for (part,) in straight.parts()]


class Largest(TorchDispatchMode):
    """The most bytes that an operation made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in tensors_in(args)}
        for each in tensors_in(results):
            if each.untyped_storage().data_ptr() not in known:
                self.bytes = max(self.bytes, each.nbytes)
        return results


@pytest.mark.parametrize("reduction", ["macro", "weighted"])
@pytest.mark.parametrize("kind", [AUROC, AUCPR])
def test_the_epochs_value_takes_a_few_columns_of_memory_at_a_time(kind, reduction, monkeypatch):
    monkeypatch.setattr(ranking, "TOGETHER", 20_000)
    monkeypatch.setattr(rows, "LARGEST", 64 << 10)
    group, generator = MetricGroup([kind.multiclass(reduction)]), torch.Generator().manual_seed(0)
    for _ in range(100):
        targets = torch.randint(40, (100,), generator=generator)
        group.collect(SimpleNamespace(output=torch.randn(100, 40, generator=generator), targets=targets))
    group.read()
    with Largest() as largest:
        (final,) = group.finals().values()
    assert not math.isnan(final)
    assert largest.bytes <= 200_000  # the scores are 1,600,000

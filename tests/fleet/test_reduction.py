"""Gradients are summed over the ranks: small ones beside each other, large ones where they lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from notebook_learner.errors import StepError
from notebook_learner.ranks import reduction
from notebook_learner.ranks.reduction import Reducer
from notebook_learner.ranks.rendezvous import ByFile, process_group

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def on_ranks() -> Any:
    """Two groups that meet: each rank is a thread here."""
    folder = mkdtemp()
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: process_group(CPU, ByFile(folder), 0, rank, 2), range(2)))

        def run(work: Callable[[int, Any], Any]) -> list[Any]:
            return list(pool.map(work, range(2), groups))

        yield run


@pytest.fixture(autouse=True, scope="module")
def little_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_ALONE", 64), ("_FIRST", 100), ("_REST", 300)):
            patch.setattr(reduction, name, size)
        yield


KINDS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
SHAPES = st.sampled_from([(), (3,), (5, 7), (16,), (4, 4), (2, 3, 4, 5)])
ORDERS = st.sampled_from(["as it is", "turned"])
EACH = st.lists(st.tuples(SHAPES, KINDS, ORDERS, st.booleans(), st.booleans()), min_size=1, max_size=8)


def drawn(parameter: Tensor, order: str, rank: int) -> Tensor:
    """A gradient whose sum is exact in half precision, too."""
    generator = torch.Generator().manual_seed(parameter.numel() + 10 * rank)
    grad = torch.randint(-8, 8, parameter.shape, generator=generator).to(parameter.dtype)
    if order == "turned" and grad.ndim > 1:
        grad = grad.transpose(0, 1).contiguous().transpose(0, 1)
    return grad


@settings(deadline=None, max_examples=100)
@given(each=EACH, mean=st.booleans(), in_backward=st.booleans())
def test_every_gradient_becomes_the_sum_or_the_mean_of_all(each, mean, in_backward, on_ranks):
    def work(rank: int, group: Any) -> tuple[list[Tensor | None], float]:
        parameters = [nn.Parameter(torch.zeros(shape, dtype=kind)) for shape, kind, *_ in each]
        reducer = Reducer(group, 1.0)
        weight = 2.0 - rank  # of two samples and of one
        sums = []
        for _ in range(2):  # the second time with buckets that are there
            for p in parameters:
                p.grad = None
            if in_backward:
                reducer.coming(parameters, weight)
            there = [(p, order) for p, (_, _, order, *has) in zip(parameters, each, strict=True) if has[rank]]
            for p, order in reversed(there):
                if in_backward:  # as the backward pass does, with whatever hangs on it
                    (p * drawn(p, order, rank)).sum().backward()
                else:
                    p.grad = drawn(p, order, rank)
            total = reducer.add_up(parameters, weight, mean)
            sums.append([p.grad for p in parameters])
        again = all(
            (a is None) == (b is None) and (a is None or torch.equal(a, b))
            for a, b in zip(*sums, strict=True)
        )
        assert again
        return sums[-1], float(total)

    (ours, weight), (theirs, other) = on_ranks(work)
    assert weight == other == 3.0
    for (shape, kind, order, *has), mine, of_other in zip(each, ours, theirs, strict=True):
        if not any(has):
            assert mine is None and of_other is None
            continue
        like = torch.zeros(shape, dtype=kind)
        expected = sum((drawn(like, order, rank) for rank in range(2) if has[rank]), torch.zeros_like(like))
        expected = expected / 3 if mean else expected
        assert torch.equal(mine, expected) and torch.equal(of_other, expected)


def test_a_large_gradient_is_summed_where_it_lies(on_ranks):
    def work(rank: int, group: Any) -> bool:
        parameter = nn.Parameter(torch.zeros(100))
        parameter.grad = torch.full((100,), float(rank + 1))
        before = parameter.grad.data_ptr()
        Reducer(group, 1.0).add_up([parameter], 1.0, True)
        assert torch.equal(parameter.grad, torch.full((100,), 1.5))
        return parameter.grad.data_ptr() == before

    assert on_ranks(work) == [True, True]


@pytest.mark.parametrize("size", [3, 100], ids=["small", "large"])
def test_a_gradient_in_pieces_is_an_error_and_no_sum(size):
    parameter = nn.Parameter(torch.zeros(size))
    reducer = Reducer(_Deaf(), 1.0)
    reducer.coming([parameter], 1.0)
    parameter.sum().backward()
    with pytest.raises(StepError, match="in several pieces"):
        parameter.sum().backward()
    reducer.sever()


@pytest.mark.parametrize("rows", [3, 100], ids=["small", "large"])
def test_a_sparse_gradient_is_refused(rows):
    table = nn.Embedding(rows, 4, sparse=True)
    reducer = Reducer(_Deaf(), 1.0)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(StepError, match="sparse gradient cannot be summed"):
        reducer.add_up([table.weight], 1.0, True)
    reducer.sever()


class _Deaf:
    """A group that sums nothing."""

    def allreduce(self, tensors: list[Tensor]) -> Any:
        return threading.Event()

    def size(self) -> int:
        return 2


SCATTERED = dist.ReduceScatterOptions()
SUMS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "allreduce": lambda group, part, whole: group.allreduce([part]),
    "gather": lambda group, part, whole: group._allgather_base(whole, part),
    "scatter": lambda group, part, whole: group._reduce_scatter_base(part, whole, SCATTERED),
}


@pytest.mark.parametrize("way", SUMS)
@pytest.mark.parametrize("late", [False, True], ids=["before the sum", "in the midst of it"])
def test_a_rank_that_is_lost_is_an_error_in_each_kind_of_sum(way: str, late: bool) -> None:
    folder = mkdtemp()
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda rank: process_group(CPU, ByFile(folder), 0, rank, 2), range(2))
    waiting = reduction._GradientSum()
    part, whole = torch.ones(4), torch.ones(8)
    groups = [other]
    del other
    if not late:
        groups.clear()
    lost = threading.Timer(1.5 * reduction._PIECE.total_seconds(), groups.clear)
    lost.start()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        waiting.begin(SUMS[way](one, part, whole), part)
        waiting.wait()
    lost.join()

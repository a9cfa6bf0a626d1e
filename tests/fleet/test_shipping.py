"""What travels between ranks, and what does not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.ranks.shipping import pack, unpack


def test_a_part_of_a_larger_tensor_travels_without_the_rest():
    x = torch.arange(1_000_000.0).reshape(100_000, 10)
    parts = {"rows": x[4:8], "column": x[:, 1][:4], "label": "a"}
    packed = pack(parts, parts=True)
    assert len(packed) < 5_000 < len(pack(x[:4]))
    found = unpack(packed)
    assert found["rows"].tolist() == x[4:8].tolist()
    assert found["column"].tolist() == [1.0, 11.0, 21.0, 31.0]
    assert found["label"] == "a"


@given(st.data())
def test_views_of_one_memory_are_views_of_one_memory_there(data: Any) -> None:
    whole = torch.arange(24.0)
    places = data.draw(st.lists(st.tuples(st.integers(0, 23), st.integers(1, 24)), min_size=1, max_size=4))
    views = [whole[start : start + count] for start, count in places]
    sent = unpack(pack((views, whole, whole.view(4, 6).t())))
    sent[1].mul_(-1)
    for (start, count), view in zip(places, sent[0], strict=True):
        assert torch.equal(view, -whole[start : start + count])
    assert torch.equal(sent[2], -whole.view(4, 6).t())


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(3), torch.empty(0), torch.ones(3, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)],
    ids=str,
)
def test_tensors_of_all_kinds_are_the_same_there(tensor: torch.Tensor) -> None:
    there = unpack(pack(tensor))
    assert torch.equal(there, tensor) and there.dtype == tensor.dtype
    assert there.requires_grad == tensor.requires_grad


def test_what_is_noted_on_a_tensor_and_a_conjugate_arrive_as_before() -> None:
    noted = torch.ones(2)
    noted.told = "mine"  # type: ignore[attr-defined]
    conjugate = torch.tensor([1 + 2j]).conj()
    there = unpack(pack((noted, conjugate)))
    assert there[0].told == "mine"
    assert torch.equal(there[1], conjugate)


class Silent(torch.optim.SGD):
    """Says itself what it brings."""

    def __getstate__(self) -> Any:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}


def test_an_optimizer_that_says_itself_what_it_brings_brings_no_more() -> None:
    optimizer = Silent([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.lock = threading.Lock()  # type: ignore[attr-defined]
    assert not hasattr(unpack(pack(optimizer)), "lock")


class Counting(torch.optim.SGD):
    taken = 0


def test_an_optimizer_brings_the_attributes_of_its_class() -> None:
    optimizer = Counting([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.taken, optimizer.seen = 3, [1, 2]  # type: ignore[attr-defined]
    there = unpack(pack(optimizer))
    assert (there.taken, there.seen) == (3, [1, 2])
    assert there.param_groups[0]["lr"] == 0.1

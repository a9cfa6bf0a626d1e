"""What travels between ranks, and what does not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.hooks import RemovableHandle

from notebook_learner.ranks.shipping import names_of, pack, unpack
from notebook_learner.step.optimizer_calls import has_hooks, tell_of_steps


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


class Listener:
    def stepping(self, name: str, closure: Any) -> None:
        raise AssertionError("the listener of another process")


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def zeroed(parameter: torch.Tensor) -> None:
    parameter.grad = None


def heard(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    optimizer.heard = True  # type: ignore[attr-defined]


def test_hooks_on_parameters_and_optimizers_arrive_and_their_handles_remove_them() -> None:
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight, other], lr=0.1)
    handles: list[Any] = [weight.register_hook(doubled), optimizer.register_step_pre_hook(heard)]  # type: ignore[no-untyped-call]
    handles += [other.register_post_accumulate_grad_hook(zeroed), optimizer.register_step_post_hook(heard)]
    tell_of_steps(optimizer, Listener(), "")  # a hook of ours beside the user's
    handles_there, (there, other_there), optimizer_there = unpack(pack((handles, (weight, other), optimizer)))
    (there * 1 + other_there).sum().backward()
    assert there.grad.tolist() == [2.0, 2.0] and other_there.grad is None
    assert has_hooks(optimizer_there)
    assert optimizer_there.param_groups[0]["params"][0] is there
    optimizer_there.step()
    assert optimizer_there.heard

    for handle in handles_there:
        handle.remove()
    assert not has_hooks(optimizer_there) and not optimizer_there._optimizer_step_pre_hooks
    there.grad = None
    (there * 1 + other_there).sum().backward()
    assert there.grad.tolist() == other_there.grad.tolist() == [1.0, 1.0]


def test_a_hook_that_removes_itself_does_so_there() -> None:
    weight = nn.Parameter(torch.ones(2))

    def once(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return gradient * 2

    handle = weight.register_hook(once)  # type: ignore[no-untyped-call]
    there = unpack(pack(weight))
    there.sum().backward()
    there.sum().backward()
    assert there.grad.tolist() == [3.0, 3.0]


def test_a_handle_that_is_sent_later_removes_the_hook_that_is_there() -> None:
    def sides() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[0].weight.register_hook(doubled)  # type: ignore[no-untyped-call]
        return model, SimpleNamespace(model=model, optimizer=optimizer)

    (model, update), (there, its_update) = sides(), sides()
    handle = RemovableHandle(model[0].weight._backward_hooks)
    handle.id = next(iter(model[0].weight._backward_hooks))
    there[0].weight._backward_hooks = OrderedDict({handle.id: doubled})
    sent = unpack(pack(handle, names_of(update, None)[0]), names_of(its_update, None)[1])
    sent.remove()
    assert not there[0].weight._backward_hooks and model[0].weight._backward_hooks


def test_a_hook_that_is_registered_there_takes_the_place_of_none_that_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nn.Linear(1, 1)
    module.register_forward_hook(lambda *_: None)
    sent = pack(module)
    monkeypatch.setattr(RemovableHandle, "next_id", 0)  # as in a new process
    there = unpack(sent)
    there.register_forward_hook(lambda *_: None)
    assert len(there._forward_hooks) == 2

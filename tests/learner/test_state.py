"""A captured state holds everything, shares nothing, and says what does not fit."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import Setup, differences, everything
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from notebook_learner import StateError
from notebook_learner.state import device_copies
from notebook_learner.state import state as states
from notebook_learner.state.state import ModelPart, OptimizerPart
from notebook_learner.step.schedule import Torch

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"fused": True},
    "Adamax": {},
    "NAdam": {"capturable": False},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
}


def trained(parameters: list[nn.Parameter], optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        for i, parameter in enumerate(parameters):
            torch.manual_seed(100 * step + i)
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_in_a_fresh_one_with_the_same_bits(name: str) -> None:
    kind, options = getattr(torch.optim, name), OPTIMIZERS[name]
    mine = parameters()
    optimizer = kind(mine, lr=0.01, **options)
    trained(mine, optimizer, 3)
    state = OptimizerPart(optimizer).capture()
    weights = [parameter.detach().clone() for parameter in mine]
    trained(mine, optimizer, 2)

    theirs = parameters()
    other = kind(theirs, lr=0.5, **options)
    with torch.no_grad():
        for parameter, weight in zip(theirs, weights, strict=True):
            parameter.copy_(weight)
    OptimizerPart(other).restore(state)
    trained(theirs, other, 2)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_moments_keep_their_own_precision_beside_a_bf16_parameter() -> None:
    """torch's load_state_dict would round them to the parameter's."""
    parameter = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    exact = torch.tensor([1.0000001, 2.0, 3.0, 4.0])
    optimizer.state[parameter]["moment"] = exact.clone()
    state = OptimizerPart(optimizer).capture()
    optimizer.state[parameter]["moment"].zero_()
    OptimizerPart(optimizer).restore(state)
    assert torch.equal(optimizer.state[parameter]["moment"], exact)


def test_an_optimizer_with_a_state_dict_of_its_own_is_asked() -> None:
    class Counting(torch.optim.SGD):
        count = 0

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            state = dict(state)
            self.count = state.pop("count")
            super().load_state_dict(state)

    optimizer = Counting(parameters(), lr=0.1)
    optimizer.count = 4
    state = OptimizerPart(optimizer).capture()
    optimizer.count = 0
    OptimizerPart(optimizer).restore(state)
    assert optimizer.count == 4


class Noting(torch.optim.SGD):
    """SGD that notes each step, in a list or a deque, wherever torch lets an optimizer keep something."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.state["all"].setdefault("steps", []).append(len(self.param_groups))  # type: ignore[index]
        for group in self.param_groups:
            group.setdefault("rates", {"past": []})["past"].append(group["lr"])
            for parameter in group["params"]:
                self.state[parameter].setdefault("norms", deque()).append(float(parameter.detach().norm()))
        return result


class NotingItself(Noting):
    """The same one, read and written by its own methods."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)


@pytest.mark.parametrize("kind", [Noting, NotingItself])
def test_a_kept_state_does_not_change_while_the_optimizer_goes_on(kind: type[Noting]) -> None:
    mine = parameters()
    optimizer = kind(mine, lr=0.1)
    trained(mine, optimizer, 2)
    state = OptimizerPart(optimizer).capture()
    as_captured = deepcopy(state)
    trained(mine, optimizer, 2)
    assert list(differences({"kept": state}, {"kept": as_captured})) == []
    for _ in range(2):  # the second time would show what the steps after the first one wrote
        OptimizerPart(optimizer).restore(state)
        assert list(differences({"live": OptimizerPart(optimizer).capture()}, {"live": as_captured})) == []
        trained(mine, optimizer, 2)
        assert list(differences({"kept": state}, {"kept": as_captured})) == []


def test_restoring_writes_into_the_tensors_that_are_there() -> None:
    mine = parameters()
    optimizer = torch.optim.Adam(mine)
    trained(mine, optimizer, 1)
    state = OptimizerPart(optimizer).capture()
    before = [optimizer.state[p]["exp_avg"].data_ptr() for p in mine]
    trained(mine, optimizer, 1)
    OptimizerPart(optimizer).restore(state)
    assert [optimizer.state[p]["exp_avg"].data_ptr() for p in mine] == before


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 2),
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[3]
        ),
    ],
    ids=["step", "lambda", "warm restarts", "one cycle", "cyclic", "sequential"],
)
def test_every_scheduler_goes_on_where_it_was(make: Any) -> None:
    def fresh() -> tuple[Optimizer, Torch]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
        schedule = Torch(make(optimizer), "epoch")
        optimizer.step()  # torch warns of schedulers that move before it
        return optimizer, schedule

    optimizer, schedule = fresh()
    for _ in range(4):
        schedule.after_epoch({})
    state, groups = schedule.capture(), OptimizerPart(optimizer).capture()
    rates = []
    for _ in range(3):
        schedule.after_epoch({})
        rates.append(optimizer.param_groups[0]["lr"])

    other, again = fresh()
    OptimizerPart(other).restore(groups)
    again.restore(state)
    for rate in rates:
        again.after_epoch({})
        assert other.param_groups[0]["lr"] == rate


class Odd(nn.Module):
    """Buffers that state_dict leaves out, tied weights, and state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.count = 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_a_model_comes_back_whole() -> None:
    model = Odd().to(memory_format=torch.contiguous_format)
    model.hidden.fill_(3)
    model.count = 5
    state = ModelPart(model).capture()
    weight = model.one.weight.detach().clone()
    with torch.no_grad():
        model.one.weight.zero_()
    model.hidden.zero_()
    model.count = 0
    ModelPart(model).restore(state)
    assert torch.equal(model.one.weight, weight)
    assert model.two.weight is model.one.weight
    assert model.hidden.tolist() == [3, 3]
    assert model.count == 5


def test_a_model_is_captured_under_the_names_that_torch_gives() -> None:
    model = nn.Sequential(Odd(), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    model.append(model[0])  # one module in two places
    state = ModelPart(model).capture()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    assert list(state["tensors"]) == [*parameters, *buffers]
    assert {"0.two.weight", "3.one.weight", "3.hidden", "2.running_mean"} < set(state["tensors"])
    assert list(state["extra"]) == ["0"]


def test_a_state_of_an_optimizer_for_cuda_graphs_goes_on_on_the_host() -> None:
    held = parameters()
    adam = torch.optim.Adam(held, lr=0.1)
    trained(held, adam, 2)
    state = OptimizerPart(adam).capture()
    (group,) = state["groups"]
    group["capturable"], group["lr"] = True, torch.tensor(0.1)
    OptimizerPart(adam).restore(state)
    trained(held, adam, 1)
    assert all(bool(parameter.isfinite().all()) for parameter in held)


@pytest.mark.parametrize("how", ["in one call", "as an older torch does", "as from a device"])
def test_copies_are_like_clones_of_whatever_a_model_or_an_optimizer_holds(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert states._clone_all is not None, "this torch has a call for all of them"
    if how == "as an older torch does":
        monkeypatch.setattr(states, "_clone_all", None)
    monkeypatch.setattr(device_copies, "_is_away", lambda _: True)
    copy_all = device_copies.copy_to_host if how == "as from a device" else states.all_copied
    held = [
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        torch.randn(3, 5).t(),
        torch.ones(3, 1).expand(3, 4),
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor(3),
        torch.tensor([True, False, True]),
        torch.tensor([2.5], dtype=torch.float64),
        torch.zeros(0),
        torch.eye(3).to_sparse(),
    ]
    copies = copy_all(held)
    for live, copy in zip(held, copies, strict=True):
        like = live.detach().clone()
        assert (type(copy), copy.dtype, copy.layout, copy.is_conj()) == (
            torch.Tensor,
            like.dtype,
            like.layout,
            like.is_conj(),
        )
        assert not copy.requires_grad and copy.grad_fn is None
        if copy.layout is torch.strided:
            assert copy.stride() == like.stride()
            assert copy.untyped_storage().data_ptr() != live.untyped_storage().data_ptr() or not live.numel()
        torch.testing.assert_close(copy, like, rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(copies[3][1])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64]),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_small_tensors_cross_to_a_device_and_back_in_packs_of_any_size_to_the_bit(shapes, pack: int) -> None:
    held = [torch.randint(0, 2, shape).to(dtype) for dtype, shape in shapes]
    live = [torch.zeros_like(each) for each in held]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_copies, "_is_away", lambda _: True)
        patch.setattr(device_copies, "_PACK", pack)
        copies = device_copies.copy_to_host(held)
        states.copy_all(live, device_copies.spread_on_devices(live, copies))
    for one, copy, written in zip(held, copies, live, strict=True):
        assert torch.equal(one, copy) and torch.equal(one, written) and copy.dtype == one.dtype
        assert copy.untyped_storage().nbytes() == one.nbytes  # and holds no other tensor's memory


def test_the_states_of_an_epoch_share_what_its_order_was_drawn_from(tmp_path: Path) -> None:
    learner = Setup(seed=None, window=2).learner(tmp_path)
    learner.step(1)
    first = learner.capture()
    learner.step(1)
    second = learner.capture()
    learner.step_epoch()
    learner.step(1)
    later = learner.capture()
    starts = [state.parts["data train"]["start"] for state in (first, second, later)]
    assert starts[0] is starts[1] is not None
    assert starts[2] is not starts[0]


def test_a_state_shares_no_memory_with_the_training(tmp_path: Path) -> None:
    learner = Setup(window=2, ema=True).learner(tmp_path)
    learner.step(3)
    state = learner.capture()
    kept = {"position": state.position, **state.parts}
    learner.step(9)
    learner.restore(state)
    assert list(differences(everything(learner), kept)) == []


def test_a_state_says_where_it_is_from_and_how_large_it_is(tmp_path: Path) -> None:
    learner = Setup().learner(tmp_path)
    learner.step(3)
    state = learner.capture()
    assert repr(state).startswith("State(epoch 1, train, step 3 of 7; model, optimizer, scheduler")
    parameters = sum(p.numel() for p in learner.model.parameters())
    assert state.nbytes > 3 * 4 * parameters  # the weights, and Adam's two moments


def test_another_models_state_is_refused_with_every_difference(tmp_path: Path) -> None:
    state = ModelPart(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))).capture()
    with pytest.raises(StateError) as caught:
        ModelPart(nn.Sequential(nn.Linear(3, 5))).restore(state)
    text = str(caught.value)
    assert "0.weight: the state has (4, 3), the model (5, 3)" in text
    assert "1.weight is not in the model" in text


def test_a_refused_state_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 5))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(StateError):
        ModelPart(model).restore(ModelPart(nn.Sequential(nn.Linear(3, 4))).capture())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_optimizer_over_other_groups_is_refused() -> None:
    one = OptimizerPart(torch.optim.SGD(parameters(), lr=0.1))
    first, second = parameters()
    two = OptimizerPart(torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=0.1))
    with pytest.raises(StateError, match=r"groups of \[2\] parameters, this one of \[1, 1\]"):
        two.restore(one.capture())


def test_a_learner_built_otherwise_refuses_the_state(tmp_path: Path) -> None:
    plain = Setup().learner(tmp_path / "a").capture()
    with pytest.raises(StateError, match="the state lacks ema"):
        Setup(ema=True).learner(tmp_path / "b").restore(plain)


def test_restore_takes_nothing_but_a_state(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="takes what capture"):
        Setup().learner(tmp_path).restore({"model": Tensor()})  # type: ignore[arg-type]

"""torch's `fully_shard` leaves no trace once it is taken off; another torch may leave something."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from parts_support import Deep
from torch import Tensor, nn

from notebook_learner.errors import StateError
from notebook_learner.ranks.sharding import Wrapped, dist, units_of


class Alone:
    """Stands in for two ranks that have the same: what one sends, the other would have sent."""

    def gather(self, whole: Tensor, part: Tensor, unit: int) -> None:
        whole.view(2, -1)[:] = part.clone()

    def scatter(self, part: Tensor, whole: Tensor, unit: int) -> None:
        part.copy_(whole.view(2, -1)[0] * 2)


def traces(model: nn.Module) -> dict[str, object]:
    """All that anything could have left on the modules."""
    return {
        name: (
            type(module),
            sorted(vars(module)),
            {key: list(each) for key, each in vars(module).items() if isinstance(each, dict)},
            [(key, id(each)) for key, each in module._parameters.items()],
            [id(each) for each in vars(module).get("_flat_weights", ())],
        )
        for name, module in model.named_modules()
    }


def wrapped(model: nn.Module) -> Wrapped:
    return Wrapped(model, Alone(), torch.device("cpu"), 0, 2)


def used(model: nn.Module) -> None:
    """A step, and a forward pass after it."""
    model(torch.ones(4, 10)).sum().backward()
    with torch.no_grad():
        model(torch.ones(4, 10))


def test_a_model_is_what_it_was_once_it_is_taken_off(recwarn):
    model = Deep()
    model.last.register_forward_hook(lambda module, given, output: None)
    before, hook = traces(model), sys.excepthook
    for _ in range(2):
        held = wrapped(model)
        assert type(model) is not Deep
        used(model)
        held.rest()
        held.take_off()
        assert traces(model) == before
    copy.deepcopy(model)
    used(model)
    assert sys.excepthook is hook
    assert not dist.is_initialized()
    assert [str(each.message) for each in recwarn] == []


def test_parts_are_rows_and_the_optimizer_s_changes_are_what_the_next_step_computes_with():
    model = nn.Linear(3, 4, bias=False)
    held = wrapped(model)
    assert [tuple(part.shape) for part in held.parts] == [(2, 3)]
    with torch.no_grad():
        held.parts[0].fill_(1.0)
    assert torch.equal(model(torch.ones(1, 3)), torch.full((1, 4), 3.0))
    held.take_off()


def test_members_of_one_kind_are_units_and_what_shares_a_weight_stays_with_the_model():
    model = Deep()
    assert units_of(model) == [*model.blocks, model]
    model.blocks[1].layer.weight = model.frozen.weight
    assert units_of(model) == [model.blocks[0], model.blocks[2], model]
    assert units_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.LayerNorm(2)))[:-1] == []


def test_a_process_group_of_the_user_s_own_is_left_alone_and_named():
    model = Deep()
    before = traces(model)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(StateError, match="this process has one already"):
            wrapped(model)
    finally:
        dist.destroy_process_group()
    assert traces(model) == before
    wrapped(model).take_off()

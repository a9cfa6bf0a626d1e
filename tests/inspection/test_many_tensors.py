"""What a look costs, and shows, where there are many small tensors: they are measured together."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from notebook_learner.inspection import look
from notebook_learner.inspection.layers import norms
from notebook_learner.inspection.statistics import Measurements, Questions, look_at

FREE = {
    "detach",
    "view",
    "slice",
    "clone",
    "alias",
    "narrow",
    "expand",
    "unsqueeze",
    "_reshape_alias",
    "select",
}
"""Views and copies: what a tensor costs at least."""


class Counting(TorchDispatchMode):
    """Counts the calls that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in FREE:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


class Wide(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(20)) for _ in range(count)])

    def forward(self, x):
        return torch.cat(list(self.all)) * x


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(20)), nn.Parameter(torch.zeros(20))

    def forward(self, x):
        return torch.addcmul(self.bias, x, self.weight)


def looked_at(model):
    x = torch.ones(1)

    def run():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    run()
    optimizer.step()
    optimizer.zero_grad()
    with Counting() as counting:
        inspection = look(x, run, model, optimizer, apply=optimizer.step)
    return inspection, counting.calls


def test_a_look_computes_as_often_for_many_tensors_as_for_few():
    (few, calls), (many, more) = looked_at(Wide(300)), looked_at(Wide(600))
    assert len(many.parameters) == 600 and many.parameters[7].update_ratio > 0
    assert few.layers[0].gradient is not None and many.layers[0].gradient is not None
    assert more == calls


def test_nested_layers_are_measured_together():
    own = {"mul", "sum", "addcmul"}  # of the model's own way there and back

    def measuring(count):
        inspection, calls = looked_at(nn.Sequential(*[nn.Sequential(Cell()) for _ in range(count)]))
        assert sum(layer.activation is not None for layer in inspection.layers) == count
        return sum(times for name, times in calls.items() if name not in own)

    assert measuring(200) < measuring(100) + 50, "a module costs no call of its own"


KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.bool,
    torch.complex64,
]


def assorted():
    """Sets of tensors of all sizes and kinds, some of them without values, or with such as are not finite."""
    torch.manual_seed(0)
    sets = [[(3 * torch.randn(size)).to(kind)] for size in (1, 7, 20, 5000) for kind in KINDS]
    sets += [[torch.randn(4, 5), torch.randn(20), torch.randn(3)] for _ in range(5)]
    sets += [[torch.tensor([math.nan, 1.0])], [torch.tensor([-math.inf, 2.0, 0.0])], [torch.empty(0)], []]
    return [*sets, [torch.empty(3, device="meta")], [torch.full((20,), math.nan)]]


@pytest.mark.parametrize("at_once", [True, False], ids=["all", "one by one"])
def test_measured_together_they_are_what_each_is_alone(at_once):
    sets, together = assorted(), Measurements()
    for some in [sets] if at_once else [[one] for one in sets]:
        together.ask(some)
    for one, found in zip(sets, together.answers(), strict=True):
        alone = look_at(one)
        assert (found is None) == (alone is None)
        if found is not None:
            assert repr(found) == repr(alone)


def test_values_that_are_written_over_later_are_seen_as_they_were():
    few, many = torch.ones(3), torch.ones(10_000)
    questions, measured = Questions(), Measurements()
    for tensor in (few, many):
        questions.ask([tensor])
        measured.ask([[tensor]])
        tensor.fill_(math.nan)
        questions.ask([tensor])
    assert [found.count for found in questions.answers()] == [0, 3, 0, 10_000]
    assert [statistics.mean for statistics, _ in measured.answers()] == [1, 1]


def test_what_is_not_finite_is_found_in_its_tensor():
    values = [torch.ones(5) for _ in range(300)] + [torch.ones(300_000)]
    values[7][2] = -math.inf
    values[9][:2] = math.nan
    values[-1][[1, 200_000]] = torch.tensor([math.inf, -math.inf])
    questions = Questions()
    for value in values:
        questions.ask([value])
    questions.ask(values)
    found = questions.answers()
    for half in (found[:301], found[301:]):
        told = {at: (one.level, str(one)) for at, one in enumerate(half) if one.level}
        assert told == {
            7: (1, "1 of 5 values"),
            9: (2, "2 of 5 values"),
            300: (2, "2 of 300,000 values"),
        }


def test_norms_of_many_are_those_of_each():
    torch.manual_seed(0)
    named = {f"{kind} {size}": torch.randn(size).to(kind) for kind in KINDS for size in (0, 1, 20, 300_000)}
    found = norms(named)
    for name, tensor in named.items():
        if tensor.is_floating_point() or tensor.is_complex():
            wanted = np.linalg.norm(tensor.to(torch.complex128).numpy())
            assert found.get(name, 0.0) == pytest.approx(wanted, rel=1e-6)
        else:
            assert name not in found

"""A keyframe of many small tensors takes little memory, counts what it takes, and gives the same back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exactness import differences
from torch import nn

from notebook_learner import LearnerBuilder, Position, State
from notebook_learner.state.compact_keyframes import Compact
from notebook_learner.state.timeline import Timeline


def parts(scale: float = 1.0) -> dict[str, Any]:
    return {
        "model": {"tensors": {f"layer {i}": torch.full((2, 3), scale * i) for i in range(30)}, "extra": {}},
        "optimizer": {
            "groups": [{"lr": 0.1 * scale, "betas": (0.9, 0.99), "fused": None, "foreach": False}],
            "state": [
                {"values": {"step": torch.tensor(scale), "moment": torch.ones(6) * i}, "host": ["step"]}
                for i in range(30)
            ],
        },
        "large": torch.ones(5000) * scale,
        "bits": [torch.tensor([True, False]), torch.arange(7, dtype=torch.int8), torch.empty(0)],
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "numpy": np.arange(4) * scale,
        "number": 3,
        "none": None,
        "metrics train": {"scores": [torch.ones(2) for _ in range(40)]},
    }


def test_what_was_laid_together_comes_apart_as_it_was() -> None:
    given = parts()
    compact = Compact(given)
    assert list(differences({**compact}, given)) == []
    assert compact["turned"].stride() == given["turned"].stride()
    assert compact["large"] is given["large"]


def test_what_metrics_keep_stays_where_it_is_for_the_next_one_to_share() -> None:
    given = parts()
    assert Compact(given)["metrics train"] is given["metrics train"]


def test_one_that_is_alike_shares_the_plan_and_not_the_values() -> None:
    first = Compact(parts())
    second = Compact(parts(2.0), first)
    assert list(differences({**second}, parts(2.0))) == []
    assert all(second._plans[name] is first._plans[name] for name in first)


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given["model"]["tensors"].popitem(),
        lambda given: given["model"]["tensors"].update({"layer 3": torch.ones(3, 2)}),
        lambda given: given["model"]["tensors"].update({"layer 3": torch.ones(2, 3, dtype=torch.float64)}),
        lambda given: given["model"]["tensors"].update({"layer 3": torch.ones(3, 2).t()}),
        lambda given: given["optimizer"]["state"].__setitem__(4, None),
        lambda given: given["optimizer"]["groups"][0].update(fused=True),
        lambda given: given.update(bits=tuple(given["bits"])),
        lambda given: given.update(more={"a": torch.ones(2)}),
        lambda given: given.pop("none"),
    ],
)
def test_one_that_is_not_alike_gets_a_plan_of_its_own(change: Any) -> None:
    first, given = Compact(parts()), parts(2.0)
    change(given)
    assert list(differences({**Compact(given, first)}, given)) == []


def test_a_tensor_that_is_changed_where_it_was_taken_from_stays_what_it_was() -> None:
    live = torch.ones(4)
    compact = Compact({"all": [live.clone() for _ in range(20)]})
    compact["all"][0].numel()
    live.zero_()
    assert compact["all"][3].tolist() == [1.0] * 4


def test_a_state_of_few_tensors_is_kept_as_it_is() -> None:
    timeline = Timeline(budget=1 << 20)
    state = State(Position(), {"x": [torch.ones(2)] * 3})
    timeline.add(state)
    assert timeline.keyframes[0] is state


def test_many_small_tensors_count_more_than_their_numbers() -> None:
    state = State(Position(), {"x": [torch.ones(2) for _ in range(1000)]})
    assert state.nbytes > 500_000
    timeline = Timeline(budget=1 << 30)
    timeline.add(state)
    assert timeline.nbytes < 100_000


MEASURED = """
import gc, sys
import psutil, torch
from torch import nn
from notebook_learner import LearnerBuilder

torch.set_num_threads(1)
model = nn.ParameterList([nn.Parameter(torch.ones(20)) for _ in range(1000)])
learner = (
    LearnerBuilder(sys.argv[1])
    .renderer("silent")
    .num_epochs(1)
    .train_step(lambda model, batch: model[0].sum() * batch)
    .build(model, torch.optim.Adam(model.parameters(), lr=1e-4), None, [torch.ones(())] * 1000)
)
timeline = learner._replica.timeline
for parameter in model:
    parameter.grad = torch.ones(20)
learner.optimizer.step()  # all of them have moments from here on

def now():
    gc.collect()
    return psutil.Process().memory_info().rss, timeline.nbytes

for _ in range(20):
    learner.step(1)
before = now()
for _ in range(120):
    learner.step(1)
after = now()
print((after[0] - before[0]) / (after[1] - before[1]), (after[1] - before[1]) / 120)
"""


@pytest.mark.soak
def test_a_thousand_small_tensors_take_what_they_count_as(tmp_path: Path) -> None:
    program = tmp_path / "measured.py"
    program.write_text(MEASURED)
    told = subprocess.run(
        [sys.executable, program, tmp_path / "run"], check=True, capture_output=True, text=True
    ).stdout
    ratio, each = map(float, told.split())
    assert 0.5 < ratio < 1.3
    assert each < 2 * 4 * (3 * 20 + 1) * 1000, "the numbers of a keyframe, and not as much again"


def test_going_back_over_them_gives_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(12)), nn.Linear(3, 1))
    learner = (
        LearnerBuilder(tmp_path)
        .loss(nn.functional.mse_loss)
        .renderer("silent")
        .num_epochs(1)
        .build(
            model,
            torch.optim.Adam(model.parameters(), lr=0.01),
            None,
            [(torch.ones(3, 3), torch.ones(3, 1))] * 20,
        )
    )
    learner.step(6)
    there = learner.capture()
    for _ in range(9):
        learner.step(1)
    assert any(isinstance(frame.parts, Compact) for frame in learner._replica.timeline.keyframes)
    assert learner.rewind(to=(1, 6)).exact
    assert list(differences({**learner.capture().parts}, {**there.parts})) == []

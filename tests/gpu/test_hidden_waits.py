"""What a step, a block, a keyframe and a checkpoint wait for. `waits.py` lists it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import waits
from cuda_support import DEVICE, armed, batches, no_waits, on_device
from torch import Tensor, nn

from notebook_learner import LearnerBuilder, Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.metric import Metric


def waited(do: Callable[[], Any], inside: str = "notebook_learner/") -> Counter[tuple[str, str]]:
    with waits.waits(inside) as found:
        do()
    return found


class Reading(Metric):
    """A metric that reads its value at once: the planted wait."""

    name = "Reading"
    needs = ("output", "targets")

    def update(self, item: Any) -> Any:
        return item.output.sum().item(), len(item.targets)


# Steps and blocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", ["silent", "panel"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_with_all_that_measures_and_moves_it_never_waits(
    precision: str, renderer: str, tmp_path: Path
) -> None:
    learner = waits.build(str(tmp_path), precision, on_device(batches(60)), renderer=renderer)
    learner.step(4)
    loop = learner._replica.loop
    with armed(learner) as watch:
        with no_waits():
            loop._steps(20)
        assert waited(lambda: loop._steps(20)).total() == 0, "not for an event or for the device either"
        assert waited(lambda: loop.flush(0.0, watch)).total() == 1
    assert loop.done == 44 and len(learner.history.values("Loss", "train", 1)) == 44


def test_a_planted_wait_in_a_step_is_found(tmp_path: Path) -> None:
    learner = waits.build(str(tmp_path), "fp32", on_device(batches(60)), metrics=Reading())
    learner.step(4)
    ((_, place),) = found = waited(lambda: learner._replica.loop._steps(20), f"gpu/{Path(__file__).name}")
    assert found.total() == 20 and " update" in place


@pytest.mark.parametrize("every_step", [False, True])
def test_a_block_waits_once_for_metrics_and_breakpoints_of_any_type(every_step: bool, tmp_path: Path) -> None:
    class Counting(Metric):
        name = "Counting"
        needs = ("output", "targets")

        def update(self, item: Any) -> Any:
            return item.targets.sum(), len(item.targets)  # of int64

    torch.manual_seed(3)
    model = nn.Linear(16, 5)
    learner = (
        LearnerBuilder(tmp_path)
        .metrics(Counting())
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .break_on(NonFinite(every_step=every_step))
        .renderer("silent")
        .build(model, lambda p: torch.optim.Adam(p, lr=1e-2), None, on_device(batches(60)))
    )
    learner.step(4)
    loop = learner._replica.loop
    with armed(learner) as watch:
        loop._steps(20)
        assert [each.glances for each in watch._series] == [not every_step]
        assert waited(lambda: loop.flush(0.0, watch)).total() == 1
    sums = [float(targets.sum()) for _, targets in batches(24)]
    assert list(learner.history["train", "Counting"])[-20:] == sums[-20:]


def test_gradients_that_go_wrong_while_the_loss_is_finite_are_found(tmp_path: Path) -> None:
    """Steps with a quick look measure the loss alone: what they did to the weights shows at a block's end."""

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            wrong = (x[0, 0] == 99).float()  # the root's slope at 0 is infinite, and 0 times it is NaN
            return self.layer(x.clamp(max=5)) + (self.layer.bias * (1 - wrong)).abs().sqrt().sum() * 0

    data = batches(60)
    data[41][0][0, 0] = 99
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .num_epochs(1)
        .break_on(NonFinite())
        .renderer("silent")
        .build(Rooted(), lambda p: torch.optim.Adam(p, lr=1e-2), None, data)
    )
    with pytest.raises(Paused, match="not finite"):
        learner.fit()
    assert learner.position.iteration == 41
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())

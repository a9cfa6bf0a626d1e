"""Stopping, looking and trying out on a GPU: no step waits for the device, and all is put back to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, armed, batches, no_waits, on_device
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder, Paused
from notebook_learner.breakpoint import DeadUnits, GradNorm, LossSpike, NonFinite, UpdateRatio

EPOCHS = 3


def build(directory: Path, data: list[Any], *conditions: Any, **options: Any) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))
    builder = (
        LearnerBuilder(directory)
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .num_epochs(EPOCHS)
        .precision(options.get("precision", "fp32"))
        .grads_accumulation(options.get("window", 1))
        .renderer("silent")
        .seed(7)
        .break_on(*conditions)
    )
    return builder.build(model, lambda p: torch.optim.Adam(p, lr=1e-2), None, data, data[:2])


def tensors(learner: Learner) -> dict[str, Tensor]:
    state = dict(learner.model.state_dict())
    for number, values in enumerate(learner.optimizer.state.values()):
        state.update({f"{number}.{name}": value for name, value in values.items()})
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, tensor in one.items() if not torch.equal(tensor.cpu(), other[name].cpu())]


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize(
    "make",
    [
        NonFinite,
        lambda: NonFinite(activations=True),
        LossSpike,
        lambda: GradNorm(above=1e9),
        lambda: UpdateRatio(above=1e9),
        lambda: DeadUnits(1.0),
    ],
)
def test_no_condition_waits_for_the_device_in_a_step(
    make: Callable[[], Any], window: int, tmp_path: Path
) -> None:
    learner = build(tmp_path, on_device(batches(120)), make(), window=window)
    learner.step(8)  # warm-up: lazy allocations may wait
    loop = learner._replica.loop
    with armed(learner) as watch:
        with no_waits():
            loop._steps(100)
        loop.flush(0.0, watch)
    assert learner.breakpoints[1].hits == 0 and loop.done == 108


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_nan_in_the_data_stops_before_its_update(precision: str, tmp_path: Path) -> None:
    learner = build(tmp_path, batches(60, wrong=41), NonFinite(), precision=precision)
    with pytest.raises(Paused, match="values of the batch"):
        learner.fit()
    assert learner.position.iteration == 41
    assert all(bool(p.isfinite().all()) for p in learner.model.parameters())
    assert learner.output.loss.isnan() and learner.output.loss.grad_fn is not None


def walk(learner: Learner, root: Path) -> Learner:
    learner.step(5)
    learner.what_if(4, lr=1.0)
    learner.inspect()
    learner.step(3)
    learner.rewind(4)
    learner.tools.lr_find(1e-4, 1.0, steps=15)
    learner.inspect("next")
    return learner.fork(root / "sibling")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_walk_ends_in_the_bits_of_the_straight_run(
    window: int, precision: str, deterministic: None, tmp_path: Path
) -> None:
    straight = build(tmp_path / "straight", batches(10), window=window, precision=precision)
    straight.fit()
    learner = build(tmp_path / "walk", batches(10), window=window, precision=precision)
    sibling = walk(learner, tmp_path)
    learner.fit()
    sibling.fit()
    assert different(tensors(learner), tensors(straight)) == []
    assert different(tensors(sibling), tensors(straight)) == []


def test_without_deterministic_algorithms_the_report_says_how_far_it_drifted(tmp_path: Path) -> None:
    learner = build(tmp_path, batches(40))
    learner.step(40)
    report = learner.rewind(20)
    assert report.position.iteration == 20
    assert ("exact" in str(report)) == report.exact and (report.differs_at is None) == report.exact


def test_a_look_leaves_state_and_memory_as_they_were(tmp_path: Path) -> None:
    learner = build(tmp_path, batches(10))
    learner.step(4)
    before = tensors(learner)
    torch.cuda.synchronize()
    learner.inspect()
    held = torch.cuda.memory_allocated()
    seen = learner.inspect()
    assert different(tensors(learner), before) == []
    assert torch.cuda.memory_allocated() <= held + (1 << 20)
    assert seen.batch[0].device.startswith("cuda") and set(seen.times) == {"forward", "backward", "optimizer"}


def test_tensors_that_a_step_reaches_outside_of_the_model_are_put_back(
    deterministic: None, tmp_path: Path
) -> None:
    def built(directory: Path) -> tuple[Learner, dict[str, Tensor]]:
        torch.manual_seed(3)
        model = nn.Linear(16, 5)
        kept = {"mean": torch.zeros(16, device=DEVICE), "count": torch.zeros((), device=DEVICE)}

        def step(model: nn.Module, batch: Any) -> Tensor:
            x, y = batch
            kept["mean"].mul_(0.9).add_(x.mean(0), alpha=0.1)
            kept["count"] = kept["count"] + 1
            return F.cross_entropy(model(x - kept["mean"]), y)

        builder = (
            LearnerBuilder(directory).train_step(step).devices([DEVICE]).num_epochs(2).renderer("silent")
        )
        made = builder.build(model, lambda p: torch.optim.Adam(p, lr=1e-2), None, batches(20))
        return made, kept

    straight, expected = built(tmp_path / "straight")
    straight.fit()
    learner, kept = built(tmp_path / "walk")
    learner.step(12)
    state = learner.capture()
    learner.step(6)
    assert learner.rewind(9).exact
    learner.step(5)
    learner.restore(state)
    learner.fit()
    assert different(tensors(learner), tensors(straight)) == []
    assert different(kept, expected) == [] and float(kept["count"]) == 40

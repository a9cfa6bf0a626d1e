"""What a step, a block, a keyframe and a checkpoint wait for. `waits.py` lists it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
import torch.nn.functional as F
import waits
from cuda_support import DEVICE, armed, batches, no_waits, on_device
from torch import Tensor, nn

from notebook_learner import LearnerBuilder, Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.metric import Metric
from notebook_learner.state import device_copies
from notebook_learner.state.device_copies import copy_to_host, together

# Of these a GPU's sync debug mode tells nothing: they wait for an event.
UNTOLD = 1 if stand_in.loaded() else 0


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


# States ---------------------------------------------------------------------------------------------------

STATES: dict[str, Callable[[Any], Any]] = {
    "a keyframe": lambda learner: learner._replica._keep(learner._replica._capture_soon(), 0.0),
    "a state": lambda learner: learner.capture(),
    "a checkpoint": lambda learner: learner.save(),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", STATES)
def test_a_state_of_many_tensors_waits_once(name: str, window: int, precision: str, tmp_path: Path) -> None:
    learner = waits.build(str(tmp_path), precision, on_device(batches(60)), grads_accumulation=window)
    learner.step(4)
    assert len(list(learner.model.parameters())) + len(learner.optimizer.state) > 10
    found = waited(lambda: STATES[name](learner))
    if precision == "fp16":  # GradScaler's own reading of its scale
        found = Counter({at: count for at, count in found.items() if "grad_scaler" not in at[1]})
    assert found.total() == UNTOLD, found


def held() -> list[Tensor]:
    return [
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        torch.randn(3, 5).t(),
        torch.ones(3, 1).expand(3, 4),
        torch.randn(6, 6)[::2, 1:3],
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor(3),
        torch.tensor([True, False, True]),
        torch.randn(700, dtype=torch.float64),
        torch.zeros(0),
        torch.arange(5000, dtype=torch.int16)[7:],
    ]


@pytest.mark.parametrize("staged", [64, 1 << 10, 1 << 28])
@pytest.mark.parametrize("small", [16, 1 << 20])
def test_what_crosses_together_is_what_crosses_alone(
    staged: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copies, "_STAGED", staged)
    monkeypatch.setattr(device_copies, "_SMALL", small)
    monkeypatch.setattr(device_copies, "_PACK", 2 * small)
    there = [each.detach().to(DEVICE) for each in held()]
    alone = [each.cpu() for each in there]
    with together():
        first = copy_to_host(there[:5])
        others = copy_to_host(there[5:])
    for copy, expected in zip(first + others, alone, strict=True):
        assert copy.device.type == "cpu" and not copy.is_pinned(), "pinned memory is scarce"
        assert (copy.dtype, copy.shape, copy.is_conj()) == (
            expected.dtype,
            expected.shape,
            expected.is_conj(),
        )
        torch.testing.assert_close(copy, expected, rtol=0, atol=0, equal_nan=True)
        assert copy.untyped_storage().nbytes() <= max(1, expected.untyped_storage().nbytes())
    assert torch.signbit(first[4][1])
    assert first[0].is_contiguous(memory_format=torch.channels_last) and first[1].stride() == (1, 5)


def test_what_crosses_waits_once_for_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [torch.randn(100, device=DEVICE) for _ in range(30)]
    assert waited(lambda: copy_to_host(there)).total() == UNTOLD
    monkeypatch.setattr(device_copies, "_STAGED", 4000)
    assert waited(lambda: copy_to_host(there)).total() == 3 * UNTOLD


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_two_devices_and_of_the_host_cross_together() -> None:
    values = [torch.randn(9) for _ in range(6)]
    mixed = [each.to(place) for each, place in zip(values, [DEVICE, "cuda:1", "cpu"] * 2, strict=True)]
    assert all(map(torch.equal, copy_to_host(mixed), values))


def test_an_error_meanwhile_is_told_and_the_next_copy_is_whole() -> None:
    there = torch.randn(9, device=DEVICE)
    with pytest.raises(ZeroDivisionError), together():
        copy_to_host([there])
        1 / 0  # noqa: B018
    assert torch.equal(copy_to_host([there])[0], there.cpu())

"""What only a GPU can show, or a stand-in for one: no step waits for the device, and states are exact there
too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, batches, counted_waits, no_waits, on_device
from torch import nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, CudaMetric, GradNorm, LearningRate, Loss


def build(directory: Path, **options: Any) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train(LearningRate())
        .metric_train_numeric(GradNorm())
        .metric_train(CudaMetric())
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .num_epochs(2)
        .clip_gradients(norm=1.0)
        .precision(options.get("precision", "fp32"))
        .grads_accumulation(options.get("window", 1))
        .renderer("silent")
        .seed(7)
        .ema(0.9)
    )
    if "checkpoint" in options:
        builder.with_file_checkpointer().checkpoint(options["checkpoint"])
    return builder.build(model, lambda p: torch.optim.Adam(p, lr=1e-2), None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [1, 4])
def test_a_hundred_steps_between_two_reads_never_wait_for_the_device(
    window: int, precision: str, tmp_path: Path
) -> None:
    learner = build(tmp_path, window=window, precision=precision)
    learner.fit(on_device(batches(20)))  # warm-up: lazy allocations may wait
    loop = learner._replica.loop
    loop.train_more(1)
    loop.passes["train"].cursor.loader = data = on_device(batches(120))
    loop.passes["train"].cursor.walk.loader = data
    loop._open_split()
    with no_waits():
        loop._steps(100)
    assert loop.done == 100
    loop.flush()
    assert len(learner.history.values("Loss", "train", 3)) == 100


def test_a_read_from_the_device_is_found(tmp_path: Path) -> None:
    with no_waits(), pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device=DEVICE).item()
    with counted_waits() as waits:
        torch.ones(1, device=DEVICE).item()
    assert len(waits) == 1


def test_a_step_in_fp16_waits_once_to_learn_whether_its_gradients_are_finite(tmp_path: Path) -> None:
    learner = build(tmp_path, precision="fp16")
    learner.fit(on_device(batches(20)))
    loop = learner._replica.loop
    loop.train_more(1)
    loop._open_split()
    with counted_waits() as waits:
        loop._steps(10)
    assert loop.done == 10 and len(waits) == 10, waits


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_a_state_of_many_small_tensors_crosses_in_a_few_copies(optimizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    layers = [layer for _ in range(50) for layer in (nn.Linear(16, 16), nn.BatchNorm1d(16))]
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .renderer("silent")
        .build(nn.Sequential(*layers), lambda p: optimizer(p, lr=1e-2), None, on_device(batches(20)))
    )
    learner.step(5)
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    with counted_waits() as waits:
        state = learner.capture()
    assert len(waits) < 10, waits
    learner.step(5)
    with counted_waits() as waits:
        learner.restore(state)
    assert len(waits) < 20, waits
    for name, tensor in learner.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("stop", [1, 5, 13])
def test_a_captured_state_gives_the_same_bits(
    stop: int, window: int, precision: str, deterministic: None, tmp_path: Path
) -> None:
    straight = build(tmp_path / "a", window=window, precision=precision)
    straight.fit(batches(10))

    learner = build(tmp_path / "b", window=window, precision=precision)
    learner._prepare(batches(10), None, None)
    learner.step(stop)
    state = learner.capture()
    torch.rand(5, device=DEVICE)
    learner.step(4)
    learner.restore(state)
    torch.rand(5, device=DEVICE)
    learner.fit()
    mine, theirs = learner.model.state_dict(), straight.model.state_dict()
    for name, tensor in theirs.items():
        assert torch.equal(mine[name], tensor), name


def test_rewinding_is_exact_with_deterministic_algorithms(deterministic: None, tmp_path: Path) -> None:
    learner = build(tmp_path)
    learner.fit(batches(10))
    assert learner.rewind(7).exact


def test_an_error_gives_the_devices_memory_back(tmp_path: Path) -> None:
    learner = build(tmp_path)
    learner.fit(batches(4))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()

    def hungry(model: nn.Module, batch: Any) -> Any:
        kept = torch.empty(1 << 28, device=DEVICE)
        raise torch.cuda.OutOfMemoryError(f"pretended, with {kept.nbytes} bytes held")

    step = learner._replica.loop.passes["train"].step
    function, step.function = step.function, lambda batch: hungry(learner.model, batch)
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        learner.fit(epochs=1)
    assert caught.value.__traceback__ is not None  # as IPython keeps it
    assert torch.cuda.memory_allocated() < before + (1 << 20)
    step.function = function
    learner.fit()
    assert learner.status == "finished"


def test_the_cuda_metric_names_the_device_and_its_memory(tmp_path: Path) -> None:
    learner = build(tmp_path)
    learner.fit(batches(4))
    text = (tmp_path / "train" / "epoch-1" / "Cuda.log").read_text()
    assert "cuda:0" in text.lower() or "GB" in text or "Gb" in text


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_checkpoint_of_a_model_on_the_gpu_resumes_with_the_same_bits(
    precision: str, deterministic: None, tmp_path: Path
) -> None:
    straight = build(tmp_path / "straight", precision=precision, window=2)
    straight.fit(batches(8), batches(3))

    first = build(tmp_path / "run", precision=precision, window=2)
    first._prepare(batches(8), batches(3), None)
    first.step(5)
    label = first.save()

    second = build(tmp_path / "run", precision=precision, window=2, checkpoint=label)
    second.fit(batches(8), batches(3))

    assert next(second.model.parameters()).device == torch.device(DEVICE)
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


def test_a_checkpoint_from_the_gpu_opens_where_there_is_none(tmp_path: Path) -> None:
    learner = build(tmp_path)
    learner._prepare(batches(8), None, None)
    learner.step(3)
    label = learner.save()
    seen = learner.artifacts.state_dict(label)
    for name, tensor in learner.model.state_dict().items():
        assert seen[name].device.type == "cpu" and torch.equal(seen[name], tensor.cpu()), name

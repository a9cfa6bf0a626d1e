"""An allocation that fails is taken back to the bit, and its memory is given back, wherever it was."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, batches, room_for
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Accuracy, GradNorm, Loss
from notebook_learner.state import device_copies
from notebook_learner.state.device_copies import copy_to_host, spread_on_devices

MIB = 1 << 20


def build(directory: Path) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(
        *(nn.Linear(16, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 5)),
    )
    builder = (
        LearnerBuilder(directory)
        .metrics(Loss(), Accuracy())
        .metric_train_numeric(GradNorm())
        .loss(F.cross_entropy)
        .devices([DEVICE])
        .num_epochs(2)
        .clip_gradients(norm=1.0)
        .ema(0.9)
        .renderer("silent")
        .seed(7)
    )
    return builder.build(model, lambda p: torch.optim.Adam(p, lr=1e-2), None, batches(5), batches(2))


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in learner.model.state_dict().items()}


def held() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("steps", [0, 3])
def test_with_too_little_memory_a_learner_stands_at_a_boundary_and_goes_on_when_there_is_more(
    steps: int, deterministic: None, tmp_path: Path
) -> None:
    straight = build(tmp_path / "straight")
    straight.fit()
    expected = weights(straight)
    del straight
    gave_out = []
    for number, room in enumerate([0, 0.2, 1, 4, 100]):
        learner = build(tmp_path / str(number))
        if steps:
            learner.step(steps)
        before = held()
        with room_for(int(room * MIB)):
            try:
                learner.fit()
            except torch.OutOfMemoryError as error:
                caught: Any = error  # as IPython keeps it
                assert learner.position.iteration == steps, (room, learner.position)
                gave_out.append(room)
                assert held() <= before + 2 * MIB, room
        learner.fit()
        found = weights(learner)
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == [], room
        del learner
        caught = None
    assert caught is None and len(gave_out) >= 3 and 100 not in gave_out


def test_a_keyframe_that_cannot_be_copied_is_an_error_and_the_next_one_is_whole(
    monkeypatch: pytest.MonkeyPatch, deterministic: None, tmp_path: Path
) -> None:
    straight, learner = build(tmp_path / "straight"), build(tmp_path / "run")
    straight.fit()
    learner.step(3)

    def no_memory(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("pretended")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError, match="pretended"):
        patch.setattr(device_copies, "_cross", no_memory)
        learner.fit()
    learner.step(1)
    assert learner.rewind(3).exact
    learner.fit()
    found, expected = weights(learner), weights(straight)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_states_are_copied_and_put_back_where_the_device_has_no_memory_left() -> None:
    values = [torch.randn(1000) for _ in range(50)]
    there = [each.to(DEVICE) for each in values]
    refused = torch.cuda.memory_stats()["num_ooms"]
    with room_for(0):
        copies = copy_to_host(there)
        torch._foreach_zero_(there)
        for live, saved in zip(there, spread_on_devices(there, copies), strict=True):
            live.copy_(saved)
    assert all(map(torch.equal, copies, values))
    assert all(torch.equal(live.cpu(), value) for live, value in zip(there, values, strict=True))
    if stand_in.loaded():  # a GPU may have room in what it has reserved
        assert torch.cuda.memory_stats()["num_ooms"] == refused + 2

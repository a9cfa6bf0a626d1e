"""Batches that cross on a stream of their own: nothing waits for them, and the numbers are the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
import waits
from cuda_support import DEVICE, armed, batches, no_waits
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import ConfigurationError, Learner, LearnerBuilder
from notebook_learner.data.to_device import way_to


def build(directory: Path, data: Any, prefetch: bool) -> Learner:
    torch.manual_seed(11)
    return waits.build(str(directory), "fp32", data, prefetch=prefetch)


def weights(learner: Learner) -> Tensor:
    return torch.cat([each.detach().flatten().cpu() for each in learner.model.parameters()])


def learner_of(directory: Path, prefetch: bool, **more: Any) -> Learner:
    x, y = (torch.cat(each) for each in zip(*batches(20), strict=True))
    return build(directory, DataLoader(TensorDataset(x, y), 32, shuffle=True, **more), prefetch)


def test_steps_of_batches_from_the_host_never_wait(tmp_path: Path) -> None:
    found: dict[bool, Counter[tuple[str, str]]] = {}
    for prefetch in (False, True):
        learner = build(tmp_path / str(prefetch), batches(60), prefetch)
        learner.step(4)
        with armed(learner):
            if prefetch:
                with no_waits():
                    learner._replica.loop._steps(20)
            with waits.waits("notebook_learner/") as found[prefetch]:
                learner._replica.loop._steps(20)
    assert found[True].total() == 0
    assert found[False].total() == 40, "inputs and targets, each by a copy that waits"


@pytest.mark.parametrize("pinned", [False, True])
def test_each_step_has_the_bits_of_the_usual_way(pinned: bool, tmp_path: Path) -> None:
    learners = [learner_of(tmp_path / str(each), each, pin_memory=pinned) for each in (False, True)]
    for learner in learners:
        learner.step(7)
        learner.rewind(3)
        learner.what_if(3, lr=0.1)
        learner.fit(epochs=2)
    usual, ahead = learners
    assert usual.history["train", "Loss"].tolist() == ahead.history["train", "Loss"].tolist()
    assert usual.history["valid", "Loss"].tolist() == ahead.history["valid", "Loss"].tolist()
    assert torch.equal(weights(usual), weights(ahead))
    if stand_in.loaded():
        assert stand_in.faults() == []


@dataclass
class Pair:
    inputs: Tensor
    names: list[str]


def test_every_kind_of_batch_arrives_whole() -> None:
    way = way_to(torch.device(DEVICE), True)
    x, there = torch.arange(6.0), torch.ones(2, device=DEVICE)
    batch = {"pair": Pair(x, ["a"]), "more": (x.view(2, 3).T, there, 3)}
    arrived = way(batch)
    assert arrived["pair"].inputs.tolist() == x.tolist() and arrived["pair"].names == ["a"]
    turned, same, number = arrived["more"]
    assert turned.tolist() == x.view(2, 3).T.tolist() and turned.stride() == (1, 3)
    assert same is there and number == 3
    assert {arrived["pair"].inputs.device.type, turned.device.type} == {"cuda"}
    assert not x.is_pinned(), "the user's own tensor stays as it is"


def test_a_source_that_is_written_again_at_once_was_copied_before() -> None:
    """A batch source may fill the same tensor again for its next batch."""
    way = way_to(torch.device(DEVICE), True)
    reused, arrived = torch.empty(1000), []
    for number in range(5):
        arrived.append(way([reused.fill_(number)])[0] * 1)
    assert [each.unique().tolist() for each in arrived] == [[0], [1], [2], [3], [4]]


def test_it_is_a_line_of_the_settings_and_a_wrong_value_is_refused(tmp_path: Path) -> None:
    learner = learner_of(tmp_path / "run", True)
    learner.step()
    run = learner.artifacts.run if learner.artifacts else None
    assert run is not None and "stream" in run.settings["prefetch"]
    model = torch.nn.Linear(2, 1)
    builder = LearnerBuilder(tmp_path / "other").devices(["cpu"], prefetch="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"prefetch='yes'"):
        builder.loss(torch.nn.functional.mse_loss).build(model, torch.optim.SGD(model.parameters(), lr=0.1))

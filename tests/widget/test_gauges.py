"""What stands at the head of the panel: rates by group, time, the device's memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from page_of_messages import learner_in, page_of
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.widget import board as boards
from notebook_learner.widget import message_pace


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def test_rate_momentum_and_decay_are_told_as_they_are_now(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["dials"] == [{"name": "", "lr": "0.1", "momentum": "0", "weight_decay": "0"}]
    learner.optimizer.param_groups[0]["lr"] = 0.025
    learner.step()
    assert page.board["dials"][0]["lr"] == "0.025"


def test_groups_have_their_names_and_those_of_several_optimizers_too(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    groups = [
        {"params": model[0].parameters(), "lr": 1e-4, "name": "body"},
        {"params": model[1].parameters()},
    ]
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).renderer("silent")
    batches = [(torch.randn(4, 4), torch.randint(0, 3, (4,)))]
    learner = builder.build(model, torch.optim.AdamW(groups, lr=1e-2), None, batches)
    page = page_of(learner)
    page.ask("hello")
    told = [(each["name"], each["lr"], each["momentum"]) for each in page.board["dials"]]
    assert told == [("body", "0.0001", "0.9"), ("group 1", "0.01", "0.9")]


def test_elapsed_time_is_told_once_steps_took_some(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["elapsed"] == ""
    learner.step(3)
    page.ask("hello")
    assert page.board["elapsed"].split()[1] in ("ms", "s", "min")


def test_memory_is_told_where_there_is_a_device(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    assert boards.gauges(learner)["memory"] == ""
    on_gpu = SimpleNamespace(
        _device_memory=lambda: 1_200_000_000, _dials=learner._dials, _ranks=learner._ranks, _is_compact=False
    )
    assert boards.gauges(on_gpu)["memory"] == "1.2 GB"


def test_a_panel_of_files_has_none_of_it() -> None:
    assert boards.gauges(None) == {"ranks": [], "dials": [], "memory": "", "compact": False}

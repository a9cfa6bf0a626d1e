"""With several devices, what steps change outside of the model is each rank's own, and comes back there."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import TWO, Net, bits, learner_on, made, samples
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from notebook_learner import Learner
from notebook_learner.event import Event, Notice

BATCH, COUNT = 8, 40


class Notices:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


class Noisy(Dataset[Any]):
    """Each rank draws for its own part."""

    def __init__(self) -> None:
        self.data, self.generator = samples(COUNT), torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + torch.randn(x.shape, generator=self.generator) / 10, y


def remembering() -> Any:
    """A step whose loss depends on the batches that this process has seen."""
    seen: deque[float] = deque(maxlen=3)
    steps = 0

    def step(model: Any, batch: Any) -> Tensor:
        nonlocal steps
        steps += 1
        seen.append(float(batch[0].sum()) % 1)
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss * (1 + sum(seen)) * (1 + (steps % 3) / 10)

    return step


def learner_in(
    directory: Path, *, noisy: bool = False, resume: bool = False, devices: Any = TWO, strategy: Any = None
) -> tuple[Learner, Notices]:
    shown = Notices()

    def configure(builder: Any) -> None:
        builder._settings.loss = None
        builder._settings.metrics = []
        builder.train_step(remembering()).renderer(shown).with_file_checkpointer()
        if strategy is not None:
            builder.strategy(strategy)
        if resume:
            builder.resume()

    learner = learner_on(devices, directory, epochs=2, configure=configure)
    torch.manual_seed(5)
    data: Any = Noisy() if noisy else samples(COUNT)
    learner._prepare(DataLoader(data, BATCH, shuffle=True), None, None)
    return learner, shown


@pytest.mark.parametrize(
    ("noisy", "strategy"),
    [(False, "ddp"), (True, "ddp"), (True, "fsdp")],
    ids=["plain data", "data that draw", "weights in parts"],
)
def test_it_comes_back_for_each_rank(noisy: bool, strategy: str, tmp_path: Path) -> None:
    straight, shown = learner_in(tmp_path / "straight", noisy=noisy, strategy=strategy)
    straight.fit()

    learner, _ = learner_in(tmp_path / "to and fro", noisy=noisy, strategy=strategy)
    learner.step(3)
    learner.what_if(2, lr=0.5)
    learner.step(1)
    learner.rewind(2)
    learner.step(1)
    kept = learner.capture()
    learner.step(3)
    learner.restore(kept)
    assert learner.verify(2).exact
    learner.fit()
    assert bits(learner) == bits(straight)
    assert not [text for text in shown.texts if text.startswith(("not in the state", "this state"))]


def test_a_resumed_run_has_what_each_rank_had(tmp_path: Path) -> None:
    straight, _ = learner_in(tmp_path / "straight", noisy=True)
    straight.fit()

    first, _ = learner_in(tmp_path / "resumed", noisy=True)
    first.step(3)
    first.save()
    second, shown = learner_in(tmp_path / "resumed", noisy=True, resume=True)
    second.fit()
    assert bits(second) == bits(straight)
    assert not [text for text in shown.texts if "rank 0" in text]


def test_it_equals_two_processes_by_hand(tmp_path: Path) -> None:
    model, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    steps = [remembering() for _ in TWO]
    torch.manual_seed(5)
    data = DataLoader(samples(COUNT), BATCH, shuffle=True)
    for _ in range(2):
        for x, y in data:
            optimizer.zero_grad()
            half = BATCH // 2
            for step, part in zip(steps, ((x[:half], y[:half]), (x[half:], y[half:])), strict=True):
                (step(model, part) / 2).backward()
            optimizer.step()
        schedule.step()

    learner, _ = learner_in(tmp_path)
    learner.step(4)
    learner.rewind(3)
    learner.fit()
    for ours, theirs in zip(learner.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_the_user_changes_between_steps_reaches_all_ranks(tmp_path: Path) -> None:
    falls = {"rate": 1.0, "steps": 0}

    def step(model: Any, batch: Any) -> Tensor:
        falls["rate"] *= 0.5
        return F.cross_entropy(model(batch[0]), batch[1]) * falls["rate"]

    def configure(builder: Any) -> None:
        builder._settings.loss, builder._settings.metrics = None, []
        builder.train_step(step)

    learner = learner_on(TWO, tmp_path, configure=configure)
    learner._prepare(DataLoader(samples(COUNT), BATCH), None, None)
    learner.step(2)
    falls["rate"] = 8.0
    learner.step(1)
    each = learner.capture().parts["ranks"]["each"]
    (told,) = each[1]["carried"]["objects"]
    assert falls["rate"] == 4.0
    assert ["=", 4.0] in told[4][1], "rank 1 goes on from the value that the user gave"


def test_verify_names_what_differs_on_another_rank(tmp_path: Path) -> None:
    here = os.getpid()
    seen: list[int] = []

    def step(model: Any, batch: Any) -> Tensor:
        seen.append(0 if os.getpid() == here else time.perf_counter_ns())
        return F.cross_entropy(model(batch[0]), batch[1])

    def configure(builder: Any) -> None:
        builder._settings.loss, builder._settings.metrics = None, []
        builder.train_step(step)

    learner = learner_on(TWO, tmp_path, configure=configure)
    learner._prepare(DataLoader(samples(COUNT), BATCH), None, None)
    report = learner.verify(2)
    assert not report.exact and report.differs is not None
    assert report.differs.what.startswith("rank 1: ") and "seen" in report.differs.what


def test_another_number_of_devices_begins_with_what_rank_0_had(tmp_path: Path) -> None:
    first, _ = learner_in(tmp_path)
    first.step(3)
    first.save()
    second, shown = learner_in(tmp_path, resume=True, devices=["cpu"] * 3)
    (told,) = [text for text in shown.texts if "does not hold what each device had" in text]
    assert "seen" in told and "steps" in told
    second.step(1)
    assert isinstance(second.model, Net)


def test_a_rank_that_another_learner_takes_over_after_a_broken_step_begins_anew(tmp_path: Path) -> None:
    def learner(name: str, fails: bool) -> Learner:
        def step(model: Any, batch: Any) -> Tensor:
            loss = F.cross_entropy(model(batch[0]), batch[1])
            if fails:
                raise RuntimeError("planted")
            return loss

        def configure(builder: Any) -> None:
            builder._settings.loss, builder._settings.metrics = None, []
            builder.train_step(step)

        made = learner_on(TWO, tmp_path / name, dropout=0.5, epochs=1, configure=configure)
        torch.manual_seed(5)
        made._prepare(DataLoader(samples(COUNT), BATCH), None, None)
        return made

    straight = learner("straight", fails=False)
    straight.fit()
    broken = learner("broken", fails=True)
    with pytest.raises(RuntimeError, match="planted"):
        broken.fit()
    del broken
    gc.collect()
    after = learner("after", fails=False)
    after.fit()
    assert bits(after) == bits(straight)

"""With several devices, what steps change outside of the model is named, as each process has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import TWO, learner_on, train_loader
from torch.nn import functional as F

from notebook_learner.event import Event, Notice


class Notices:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


@pytest.mark.parametrize("counts", [True, False])
def test_a_counter_of_a_step_is_named_once(counts: bool, tmp_path: Path) -> None:
    calls = 0

    def step(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += counts
        return F.cross_entropy(model(batch[0]), batch[1])

    shown = Notices()

    def configure(builder: Any) -> None:
        builder._settings.loss = None
        builder.train_step(step).renderer(shown).metrics()
        builder._settings.metrics = []

    learner = learner_on(TWO, tmp_path, epochs=2, configure=configure)
    torch.manual_seed(5)
    learner.fit(train_loader())
    told = [text for text in shown.texts if text.startswith("not in the state")]
    assert len(told) == counts
    assert all("calls: with several devices each process has its own" in text for text in told)
    assert [row.name for row in learner.carried] == (["calls"] if counts else [])

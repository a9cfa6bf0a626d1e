"""What cannot be kept is named before it matters, and nothing else is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from carried_support import Notices
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder


def told_by(directory: Path, value: Any, /, level: str = "told", **named: Any) -> list[str]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    shown = Notices()

    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x), y) * (1 if value is not None else 0)

    builder = LearnerBuilder(directory).train_step(step).metrics().renderer(shown).exactness(level)  # type: ignore[arg-type]
    data = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3
    learner = builder.carry(**named).build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)
    learner.step(2)
    learner.step(1)
    return [text for text in shown.texts if text.startswith("not in the state")]


def test_what_cannot_be_kept_is_named_once_before_it_matters(tmp_path: Path) -> None:
    (told,) = told_by(tmp_path, (number for number in range(9)))
    assert told.startswith("not in the state: ") and "step: value (generator)" in told
    assert "a rewind will not take it back" in told and ".carry(value=...)" in told


@pytest.mark.parametrize("cycle", [False, True])
def test_a_second_loader_in_the_midst_of_its_work_is_named_and_a_rewind_is_no_error(
    cycle: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, shown = nn.Linear(4, 2), Notices()
    others: Any = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2, shuffle=True)
    coming = itertools.cycle(others) if cycle else iter(others)

    def step(model: nn.Module, batch: Any) -> Tensor:
        (other,) = next(coming)
        return F.cross_entropy(model(batch[0] + other), batch[1])

    builder = LearnerBuilder(tmp_path).train_step(step).num_epochs(2).renderer(shown)
    data = [(torch.ones(2, 4), torch.tensor([0, 1]))] * (9 if cycle else 3)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)
    learner.step(3)
    (told,) = [text for text in shown.texts if text.startswith("not in the state")]
    assert f"coming ({'cycle' if cycle else '_SingleProcessDataLoaderIter'})" in told
    assert "in the middle of its work" in told
    if cycle:
        assert not learner.rewind(2).exact
        learner.step(4)


def test_a_pair_of_functions_is_a_remedy(tmp_path: Path) -> None:
    numbers = (number for number in range(9))
    assert told_by(tmp_path, numbers, value=(lambda: 0, lambda state: None)) == []


def test_what_only_shows_or_logs_is_not_named(tmp_path: Path) -> None:
    import logging
    import threading

    import matplotlib.figure

    log = (tmp_path / "log.txt").open("w")
    for number, value in enumerate(
        [logging.getLogger("x"), log, matplotlib.figure.Figure(), threading.Lock(), print, Path(), np, None]
    ):
        assert told_by(tmp_path / str(number), value) == []
    log.close()


def test_where_exactness_is_required_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="value \\(generator\\)"):
        told_by(tmp_path, (number for number in range(9)), "required")


def test_switched_off_it_is_silent_and_keeps_nothing(tmp_path: Path) -> None:
    assert told_by(tmp_path, (number for number in range(9)), "off") == []

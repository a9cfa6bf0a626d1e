"""What is set for a whole process, such as torch's precision: a cell sets it in the kernel, and it holds on
every rank."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fleet_support import TWO, learner_on, train_loader
from torch.nn import functional as F

from notebook_learner.errors import ConfigurationError
from notebook_learner.ranks import process_settings
from notebook_learner.ranks.process_settings import ambient, surround


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    before = ambient()
    yield
    assert surround(before) == []


def in_force() -> dict[str, Any]:
    """What a step can see of them; by a call of torch where there is one."""
    return {
        "dtype": torch.zeros(1).dtype,
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "denormals": float(torch.tensor(5e-324, dtype=torch.float64) * 1) == 0.0,
        "cudnn": torch.backends.cudnn.benchmark,
        "anomalies": torch.is_anomaly_enabled(),
    }


def set_all() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(True)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.benchmark = True
    torch.autograd.set_detect_anomaly(True)


def step_that_wants(wanted: dict[str, Any]) -> Callable[[Any, Any], Any]:
    def step(model, batch):
        x, y = batch
        found = in_force()
        if found != wanted:
            raise AssertionError(f"{found} in place of {wanted}")
        return F.cross_entropy(model(x.to(model.first.weight.dtype)), y)

    return step


def learner_in(directory: Any, wanted: dict[str, Any]) -> Any:
    def configure(builder: Any) -> None:
        builder._settings.loss = None
        builder.train_step(step_that_wants(wanted)).metrics()
        builder._settings.metrics = []

    learner = learner_on(TWO, directory, configure=configure)
    learner._supplies.use(learner, "train", train_loader())
    return learner


def test_what_a_cell_sets_holds_on_all_ranks_from_the_next_step_on(tmp_path):
    plain = in_force()
    learner = learner_in(tmp_path / "one", plain)
    learner.step()
    set_all()
    odd = in_force()
    assert all(odd[name] != value for name, value in plain.items())
    learner.train_step = step_that_wants(odd)
    learner.step(2)


def test_a_learner_that_takes_over_the_processes_of_another_has_its_own_settings(tmp_path):
    plain = in_force()
    set_all()
    learner = learner_in(tmp_path / "one", in_force())
    learner.step()
    follower = learner.devices[1].pid
    del learner
    gc.collect()
    surround(ORDINARY)
    assert in_force() == plain
    other = learner_in(tmp_path / "two", plain)
    other.step()
    assert other.devices[1].pid == follower, "the processes are not those of the other learner"


ORDINARY = ambient()


def test_a_setting_that_a_rank_cannot_have_is_told(tmp_path, monkeypatch):
    """As on a machine whose processor cannot treat denormal numbers as zero."""
    told: list[str] = []

    class Told:
        def handle(self, event: Any) -> None:
            told.extend([event.text] if type(event).__name__ == "Notice" else [])

    learner = learner_on(TWO, tmp_path, configure=lambda builder: builder.metric_logger(Told()))
    learner._supplies.use(learner, "train", train_loader())
    odd = {**ambient(), "dtype": "no dtype"}
    monkeypatch.setattr(process_settings, "ambient", lambda: odd)
    learner.step()
    assert told == ["rank 1 cannot have rank 0's setting of: dtype"]


@pytest.mark.parametrize("verb", ["step", "fit"])
def test_autocast_around_a_verb_is_refused_as_it_would_hold_on_one_rank(verb, tmp_path):
    learner = learner_in(tmp_path, in_force())
    refused = pytest.raises(ConfigurationError, match=r"autocast.*rank 0 alone.*precision")
    with torch.autocast("cpu", torch.bfloat16), refused:
        getattr(learner, verb)()
    learner.step()
    assert learner.position.iteration == 1

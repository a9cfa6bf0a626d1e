"""All ranks run the code that the notebook has now: of cells, and of files that were edited since."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import CLASSES, FEATURES, TWO, bits, furthest, train_loader

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import StateError

SOURCE = f"""
import torch
from torch import nn
from torch.nn import functional as F

class Edited(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear({FEATURES}, {CLASSES})
        self.tanh = Tanh()

    def train_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.tanh(self.line(x)) * {{factor}}, y)

class Tanh(nn.Module):
    def forward(self, x):
        return torch.tanh(x)
"""


def of_a_cell(factor: int) -> Any:
    """As a cell defines it, in the notebook's own module, with its source at hand."""
    source = SOURCE.format(factor=factor)
    file = f"<cell {factor}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = vars(sys.modules["__main__"])
    exec(compile(source, file, "exec"), namespace)
    return namespace["Edited"]


@pytest.fixture(params=["a cell", "a file"])
def defined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    """Define the class anew; in a file of a folder that is looked in from now on."""
    if request.param == "a cell":
        yield of_a_cell
        for name in ("Edited", "Tanh"):
            vars(sys.modules["__main__"]).pop(name, None)
        return
    name = f"edited_{os.getpid()}"
    file = tmp_path / f"{name}.py"
    sys.path.insert(0, str(tmp_path))

    def of_a_file(factor: int) -> Any:
        file.write_text(SOURCE.format(factor=factor))
        os.utime(file, (1000 * factor,) * 2)  # Python looks at seconds, in which both edits may lie
        module = importlib.import_module(name)
        return importlib.reload(module).Edited

    yield of_a_file
    sys.path.remove(str(tmp_path))
    sys.modules.pop(name)


def learner_of(model: Any, devices: list[str] | None, directory: Path) -> Learner:
    builder = LearnerBuilder(directory).num_epochs(1).renderer("silent").with_application_logger(False)
    if devices:
        builder.devices(devices)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.5), None, train_loader())
    torch.manual_seed(5)
    return learner


def trained(defined: Callable[[int], Any], devices: list[str] | None, directory: Path) -> Learner:
    """Three steps with one code, and the rest with another one."""
    kind = defined(1)
    torch.manual_seed(0)
    learner = learner_of(kind(), devices, directory)
    learner.step(3)
    defined(4)
    assert "Edited (train_step)" in repr(learner.tools.reload_code())
    learner.fit()
    return learner


def test_reloaded_code_holds_on_all_ranks(defined, tmp_path):
    one, two = (trained(defined, devices, tmp_path / str(devices)) for devices in (None, TWO))
    assert furthest(two.model, one.model) < 1e-5


@pytest.mark.parametrize("devices", [None, TWO], ids=["one device", "two"])
@pytest.mark.rounds(1)
def test_what_does_not_fit_is_refused_and_training_goes_on(defined, devices, tmp_path):
    learner = learner_of(defined(1)(), devices, tmp_path / "run")
    learner.step(1)
    old = type(learner.model)
    global SOURCE
    before = SOURCE
    try:
        SOURCE = before.replace("self.tanh = Tanh()", "self.tanh = Tanh(); self.more = nn.Linear(3, 3)")
        defined(2)
        with pytest.raises(StateError, match="more"):
            learner.tools.reload_code()
    finally:
        SOURCE = before
    assert type(learner.model) is old
    learner.fit()


@pytest.mark.rounds(1)
def test_a_learner_that_takes_over_the_processes_of_another_runs_the_code_of_now(defined, tmp_path):
    learner_of(defined(1)(), TWO, tmp_path / "earlier").step(1)
    models = []
    for devices in (None, TWO):
        torch.manual_seed(0)
        learner = learner_of(defined(7)(), devices, tmp_path / str(devices))
        learner.fit()
        models.append(learner.model)
    assert furthest(models[1], models[0]) < 1e-5


def test_a_rank_with_reloaded_code_keeps_its_random_numbers(tmp_path):
    """Dropout draws on each rank; the code is the same, so a run that reloads it is the same run."""
    found = []
    for again in (False, True):
        kind = of_a_cell(1)
        torch.manual_seed(0)
        model = kind()
        model.tanh = torch.nn.Sequential(model.tanh, torch.nn.Dropout(0.5))
        learner = learner_of(model, TWO, tmp_path / f"{again}")
        learner.step(3)
        if again:
            of_a_cell(1)
            assert "Edited" in repr(learner.tools.reload_code())
        learner.fit()
        found.append(bits(learner))
    for name in ("Edited", "Tanh"):
        vars(sys.modules["__main__"]).pop(name, None)
    assert found[0] == found[1]

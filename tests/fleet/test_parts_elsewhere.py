"""With weights in parts: a run that is handed over, code that changes, and a rank that hangs."""

from __future__ import annotations

import linecache
import sys

import pytest
import torch
from fleet_support import CLASSES, FEATURES, TWO, bits, furthest, train_loader
from parts_support import begun
from test_ranks_that_hang import interrupted_twice, learner_that_hangs

from notebook_learner import LearnerBuilder
from notebook_learner.errors import RankDied
from notebook_learner.ranks import leader


@pytest.mark.soak
def test_a_run_that_is_handed_over_comes_back_to_the_same_bits(tmp_path):
    straight = begun(tmp_path / "straight", dropout=0.5)
    straight.fit(train_loader())
    learner = begun(tmp_path / "away", configure=lambda b: b._settings.loggers.clear(), dropout=0.5)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(4)
    learner.detach()
    learner.take_back()
    learner.fit()
    assert bits(learner) == bits(straight)


def of_a_cell(factor):
    """As a cell defines it, in the notebook's own module, with its source at hand."""
    source = f"""
import torch
from torch.nn import functional as F

class Changing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear({FEATURES}, {CLASSES})

    def forward(self, x):
        return self.line(x) * {factor}

    def train_step(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)
"""
    file = f"<cell of parts {factor}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), vars(sys.modules["__main__"]))
    return vars(sys.modules["__main__"])["Changing"]


def test_code_that_is_reloaded_runs_on_all_ranks(tmp_path):
    def trained(devices):
        torch.manual_seed(1)
        model = of_a_cell(1)()
        builder = LearnerBuilder(tmp_path / str(devices)).renderer("silent").num_epochs(2)
        if devices is not None:
            builder.devices(devices).strategy("fsdp")
        learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        torch.manual_seed(5)
        learner._supplies.use(learner, "train", train_loader())
        learner.step(3)
        of_a_cell(-2)
        learner.tools.reload_code()
        learner.step(4)
        return learner.model

    assert furthest(trained(TWO), trained(None)) < 1e-6


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.soak
def test_a_second_interrupt_ends_the_rank_that_hangs_and_restart_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(leader, "PATIENCE", 1.0)
    learner = learner_that_hangs(tmp_path / "hanging", "train", strategy="fsdp")
    person = interrupted_twice(tmp_path / "hanging" / "hangs")
    with pytest.raises(RankDied, match=r"for 1 s .*after the step was broken off, and was killed"):
        learner.fit(train_loader())
    person.join()
    learner.devices.restart()
    learner.fit()
    straight = learner_that_hangs(tmp_path / "straight", "train", seconds=0.0, strategy="fsdp")
    straight.fit(train_loader())
    assert bits(learner) == bits(straight)

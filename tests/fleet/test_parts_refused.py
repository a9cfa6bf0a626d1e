"""What weights in parts do not allow is refused with the reason: neither waited for, nor computed wrong."""

from __future__ import annotations

import os

import pytest
import torch
from fleet_support import TWO, learner_on, train_loader, valid_loader
from parts_support import begun
from torch import nn
from torch.nn import functional as F

from notebook_learner import LearnerBuilder, TrainOutput
from notebook_learner.breakpoint import GradNorm
from notebook_learner.errors import ConfigurationError, StateError, StepError


class Forks(nn.Module):
    """Runs other layers on another rank, in training or in validation."""

    def __init__(self, here, elsewhere, validates):
        super().__init__()
        self.validates = validates
        self.ways, self.home = nn.ModuleList(nn.Linear(10, 10) for _ in range(2)), os.getpid()
        self.here, self.elsewhere = here, elsewhere

    def forward(self, x):
        own = self.here if os.getpid() == self.home else self.elsewhere
        for way in (0,) if self.training == self.validates else own:
            x = self.ways[way](x)
        return x


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize(("here", "elsewhere"), [((0,), (1,)), ((0, 1), (0,)), ((0,), (0, 1))])
@pytest.mark.rounds(1)
def test_ranks_that_run_other_layers_are_told_so_and_neither_wait_nor_mix_them(
    tmp_path, here, elsewhere, validates
):
    model = Forks(here, elsewhere, validates)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).devices(TWO).strategy("fsdp").renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(StepError, match="each has to run the same layers in the same order"):
        learner.fit(train_loader(), valid_loader())
    assert learner.position.split == ("valid" if validates else "train")
    same = all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert same != validates


def test_a_step_that_makes_its_own_gradients_is_refused(tmp_path):
    def step(model, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        return TrainOutput(model, loss.backward(), type("Item", (), {"loss": loss})())

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step).metrics()
        builder._settings.metrics = []

    with pytest.raises(StepError, match=r"TrainOutput.* return the item with its `.loss`"):
        begun(tmp_path, configure=configure).fit(train_loader())


def test_a_weight_that_was_kept_from_before_gives_no_number_in_a_step(tmp_path):
    """A penalty that reads it must not come out as nothing."""
    kept = []

    def step(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y) + sum(weight.pow(2).sum() for weight in kept)

    def configure(builder):
        builder._settings.loss = None
        builder.train_step(step).metrics()
        builder._settings.metrics = []

    learner = begun(tmp_path, configure=configure)
    kept += learner.model.parameters()
    learner._supplies.use(learner, "train", train_loader())
    learner.step(1)
    assert not learner.output.loss.isfinite()


def test_a_rank_s_own_report_is_refused_as_it_has_but_its_part(tmp_path):
    learner = begun(tmp_path)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(1)
    with pytest.raises(StateError, match="rank 0 alone has all weights"):
        learner.inspect(rank=1)


def test_what_needs_whole_weights_is_refused_all_at_once(tmp_path):
    def configure(builder):
        builder.precision("fp16").compile().ema().break_on(GradNorm(above=1.0)).strategy("fsdp")

    with pytest.raises(ConfigurationError) as caught:
        learner_on(TWO, tmp_path, configure=configure)
    said = str(caught.value)
    for part in ("use precision('bf16')", "compile() would break", "ema() averages", "break_on(GradNorm"):
        assert part in said


class Odd(nn.Module):
    """Weights that cannot be dealt out in rows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.turned = nn.Parameter(torch.ones(3, 2).t())
        self.other = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("model", "optimizer", "devices", "said"),
    [
        (Odd, torch.optim.SGD, TWO, "scale has none"),
        (Odd, torch.optim.SGD, TWO, "these are not: turned"),
        (Odd, torch.optim.SGD, TWO, "torch.bfloat16, torch.float32"),
        (lambda: nn.Linear(3, 3), torch.optim.Adafactor, TWO, "Adafactor may need whole weights"),
        (lambda: nn.Linear(3, 3), torch.optim.SGD, ["cpu"], "among several devices; name them"),
        (lambda: nn.Embedding(3, 3, sparse=True), torch.optim.SGD, TWO, "cannot sum sparse gradients"),
    ],
)
def test_models_that_cannot_be_dealt_out_are_refused(tmp_path, model, optimizer, devices, said):
    made = model()
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).devices(devices).strategy("fsdp")
    with pytest.raises(ConfigurationError) as caught:
        builder.build(made, optimizer(made.parameters(), lr=0.1))
    assert said in str(caught.value)


def test_a_strategy_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match='choose "ddp" or "fsdp"'):
        learner_on(TWO, tmp_path, configure=lambda b: b.strategy("zero"))


def test_a_torch_that_is_too_old_is_named(tmp_path, monkeypatch):
    from torch.distributed import fsdp

    monkeypatch.delattr(fsdp, "FSDPModule")
    with pytest.raises(ConfigurationError, match="is too old"):
        learner_on(TWO, tmp_path, configure=lambda b: b.strategy("fsdp"))

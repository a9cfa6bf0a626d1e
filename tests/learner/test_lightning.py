"""A model that was written for Lightning trains as it is: equal to Lightning's own trainer, to the bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_support import (
    EPOCHS,
    Base,
    bits,
    both,
    by_lightning,
    classifier,
    data,
    gan,
    learner_of,
    lightning,
    rows,
    same,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader

from notebook_learner import LearnerBuilder
from notebook_learner.breakpoint import NonFinite
from notebook_learner.errors import BusyError, ConfigurationError, StepError


def straight(learner: Any) -> None:
    learner.fit()


def rewound(learner: Any) -> None:
    learner.step(9)
    learner.rewind(5)
    learner.fit()


def asked_what_if(learner: Any) -> None:
    learner.step(9)
    learner.what_if(steps=3, lr=1.0)
    learner.fit()


ways = pytest.mark.parametrize("way", [straight, rewound, asked_what_if], ids=lambda way: way.__name__)


@both
@ways
def test_it_trains_as_by_lightning(base: Base, way: Callable[[Any], None], tmp_path: Path) -> None:
    theirs = classifier(lightning.LightningModule)
    trainer = by_lightning(theirs)
    learner = learner_of(classifier(base), tmp_path)
    way(learner)
    assert same(bits(learner.model), bits(theirs))
    assert learner.model.seen == theirs.seen
    ends = {name: values[-1] for (_, name), values in epoch_values(learner).items()}
    for name in ("val_loss", "val_f1", "train_acc"):
        assert ends[name] == pytest.approx(float(trainer.callback_metrics[name]), rel=1e-6)


@both
@ways
def test_manual_optimization_trains_as_by_lightning(
    base: Base, way: Callable[[Any], None], tmp_path: Path
) -> None:
    theirs = gan(lightning.LightningModule)
    by_lightning(theirs, labelled=False)
    learner = learner_of(gan(base), tmp_path, labelled=False)
    way(learner)
    assert same(bits(learner.model), bits(theirs))
    assert [*learner.optimizer] == ["0", "1"]


@both
@pytest.mark.parametrize("make", [classifier, gan])
def test_it_goes_on_after_its_process_has_ended(
    base: Base, make: Callable[[Base], Any], tmp_path: Path
) -> None:
    labelled = make is classifier
    theirs = make(lightning.LightningModule)
    trainer = by_lightning(theirs, labelled)
    for steps in (10, 14):  # in an epoch, and at its end, whose values are not read yet
        learner = learner_of(make(base), tmp_path / str(steps), labelled)
        learner.step(steps)
        learner.save()
        del learner
        again = learner_of(make(base), tmp_path / str(steps), labelled, resume=True)
        again.fit()
        assert same(bits(again.model), bits(theirs))
        if labelled:
            ends = {name: values[-1] for (_, name), values in epoch_values(again).items()}
            assert ends["train_acc"] == pytest.approx(float(trainer.callback_metrics["train_acc"]), rel=1e-6)


@both
def test_a_metric_of_an_epoch_has_its_value_where_the_epoch_was_resumed_at_its_last_step(
    base: Base, tmp_path: Path
) -> None:
    straight = learner_of(classifier(base), tmp_path / "straight")
    straight.fit()
    learner = learner_of(classifier(base), tmp_path / "run")
    learner.step(7)  # the epoch's last training step: its values are read as the next step begins
    learner.save()
    del learner
    again = learner_of(classifier(base), tmp_path / "run", resume=True)
    again.fit()
    assert epoch_values(again)["train", "train_acc"] == epoch_values(straight)["train", "train_acc"]


@both
def test_a_fork_has_its_own_model(base: Base, tmp_path: Path) -> None:
    theirs = gan(lightning.LightningModule)
    by_lightning(theirs, labelled=False)
    learner = learner_of(gan(base), tmp_path / "run", labelled=False)
    learner.step(9)
    child = learner.fork(tmp_path / "child")
    child.fit()
    assert same(bits(child.model), bits(theirs))
    assert not same(bits(learner.model), bits(theirs))


@both
@pytest.mark.parametrize("make", [classifier, gan])
def test_it_can_be_verified_inspected_and_tried(
    base: Base, make: Callable[[Base], Any], tmp_path: Path
) -> None:
    labelled = make is classifier
    theirs = make(lightning.LightningModule)
    by_lightning(theirs, labelled)
    learner = learner_of(make(base), tmp_path, labelled)
    learner.step(3)
    report = learner.verify(steps=2)
    assert report.exact and not report.untried, report
    assert "net" in str(learner.inspect()) or "critic" in str(learner.inspect())
    learner.tools.try_step()
    learner.fit()
    assert same(bits(learner.model), bits(theirs))


@both
def test_an_error_between_two_optimizers_takes_the_first_step_back(base: Base, tmp_path: Path) -> None:
    learner = learner_of(gan(base), tmp_path, labelled=False)
    learner.step(3)
    before = bits(learner.model)

    def fail() -> None:
        raise ValueError("between")

    learner.model.toggle_optimizer = None  # the model's own attribute comes back, too
    learner.model.between = fail
    with pytest.raises(ValueError, match="between"):
        learner.step()
    assert same(bits(learner.model), before)
    assert all(each.requires_grad for each in learner.model.parameters())
    assert learner.model.__dict__["toggle_optimizer"] is None


counted: list[int] = []


@both
def test_what_steps_and_hooks_reach_goes_back(base: Base, tmp_path: Path) -> None:
    def step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        counted.append(batch_idx)
        return len(counted) * self.net(batch[0]).sum()

    def begin(self: Any) -> None:
        counted.append(-1)

    counted.clear()
    learner = learner_of(classifier(base, training_step=step, on_train_epoch_start=begin), tmp_path)
    learner.step(5)
    before = list(counted)
    learner.rewind(3)
    assert counted == before[:-3]
    learner.step(3)
    assert counted == before == [-1, 0, 1, 2, 3, 4]


@both
def test_nothing_stays_on_the_model(base: Base, tmp_path: Path) -> None:
    model = classifier(base)
    before = set(model.__dict__)
    learner = learner_of(model, tmp_path)
    learner.fit()
    assert set(model.__dict__) == before
    assert getattr(model, "_trainer", None) is None


def test_lightning_is_not_imported(tmp_path: Path) -> None:
    program = """
import sys, torch
from torch import nn
from notebook_learner import LearnerBuilder
class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
learner = LearnerBuilder(sys.argv[1]).renderer("silent").build(Lit())
learner.fit([torch.ones(3, 2)] * 4)
assert len(learner.history["train", "train_loss"]) == 4
assert not {"lightning", "pytorch_lightning"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


# What configure_optimizers may give ----------------------------------------------------------------------


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def with_schedule(model: Any) -> Any:
    optimizer = adam(model)
    return [optimizer], [StepLR(optimizer, 1, 0.5)]


def with_place(model: Any) -> Any:
    optimizer = adam(model)
    return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.5), "interval": "step"}]


def as_dict(model: Any) -> Any:
    optimizer = adam(model)
    return {"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 1, 0.5)}


def of_the_whole_length(model: Any) -> Any:
    optimizer = adam(model)
    schedule = OneCycleLR(optimizer, 0.2, total_steps=model.trainer.estimated_stepping_batches)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@both
@pytest.mark.parametrize("form", [adam, with_schedule, with_place, as_dict, of_the_whole_length])
def test_each_form_of_configure_optimizers_is_taken(
    base: Base, form: Callable[[Any], Any], tmp_path: Path
) -> None:
    theirs = classifier(lightning.LightningModule, configure_optimizers=form)
    by_lightning(theirs)
    learner = learner_of(classifier(base, configure_optimizers=form), tmp_path)
    learner.fit()
    assert same(bits(learner.model), bits(theirs))


def two(model: Any) -> Any:
    return [adam(model), adam(model)]


def with_frequency(model: Any) -> Any:
    optimizer = adam(model)
    return [optimizer], [{"scheduler": StepLR(optimizer, 1), "frequency": 2}]


def two_schedules(model: Any) -> Any:
    optimizer = adam(model)
    return [optimizer], [StepLR(optimizer, 1), StepLR(optimizer, 2)]


@both
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (two, "self.automatic_optimization = False"),
        (with_frequency, "frequency"),
        (two_schedules, "ChainedScheduler"),
        (lambda model: None, "not an optimizer"),
        (lambda model: "Adam", "not an optimizer"),
        (lambda model: model.trainer.datamodule, "self.trainer has no 'datamodule'"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_words(
    base: Base, form: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigurationError, AttributeError), match=said):
        learner_of(classifier(base, configure_optimizers=form), tmp_path)


@both
def test_a_length_that_is_not_known_is_asked_for(base: Base, tmp_path: Path) -> None:
    model = classifier(base, configure_optimizers=of_the_whole_length)
    with pytest.raises(ConfigurationError, match=r"build\(model, train=loader\)"):
        LearnerBuilder(tmp_path).build(model)


@both
def test_an_optimizer_that_is_given_counts(base: Base, tmp_path: Path) -> None:
    model = classifier(base, configure_optimizers=two)
    learner = LearnerBuilder(tmp_path).renderer("silent").build(model, adam(model))
    learner.fit(*data())
    assert learner.status == "finished"


def test_without_an_optimizer_the_error_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give an optimizer such as"):
        LearnerBuilder(tmp_path).loss(F.mse_loss).build(nn.Linear(1, 1))


# Data, hooks and values ----------------------------------------------------------------------------------


@both
def test_the_model_may_bring_its_data(base: Base, tmp_path: Path) -> None:
    model = classifier(base, train_dataloader=lambda self: data()[0], val_dataloader=lambda self: data()[1])
    learner = LearnerBuilder(tmp_path).renderer("silent").build(model)
    learner.fit()
    assert len(learner.history["train", "train-loss"]) == 7
    assert len(learner.history["valid", "val_loss"]) == 4


@both
def test_a_batch_in_parts_has_its_hooks_once_and_logs_its_mean(base: Base, tmp_path: Path) -> None:
    calls: list[str] = []

    def start(self: Any, batch: Any, batch_idx: int) -> None:
        calls.append("start")

    logged = []
    for parts in (1, 2):
        learner = learner_of(classifier(base, on_train_batch_start=start), tmp_path / str(parts))
        for layer in learner.model.net:
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        learner.split_batch(parts)
        calls.clear()
        learner.step(3)
        assert calls == ["start"] * 3
        logged.append(learner.history["train", "train-loss"])
    assert list(logged[0]) == pytest.approx(list(logged[1]), rel=1e-4)


@both
def test_hooks_are_called_in_lightnings_order(base: Base, tmp_path: Path) -> None:
    names = (
        *("setup", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"),
        *("on_validation_epoch_start", "on_validation_epoch_end", "on_train_epoch_end"),
    )

    def told() -> tuple[Any, list[str]]:
        calls: list[str] = []
        hooks = {name: noting(name, calls) for name in names}
        return hooks, calls

    def noting(name: str, calls: list[str]) -> Callable[..., None]:
        return lambda self, *args, **named: calls.append(name)

    hooks, theirs = told()
    by_lightning(classifier(lightning.LightningModule, **hooks))
    hooks, ours = told()
    learner_of(classifier(base, **hooks), tmp_path).fit()
    assert ours == theirs


@both
def test_a_hook_without_a_place_is_told_by_name(base: Base, tmp_path: Path, capsys: Any) -> None:
    model = classifier(base, on_before_zero_grad=lambda self, optimizer: None)
    LearnerBuilder(tmp_path / "one").renderer("plain").build(model, train=data()[0])
    assert "on_before_zero_grad of Classifier is not called" in capsys.readouterr().out
    LearnerBuilder(tmp_path / "other").renderer("plain").build(classifier(base), train=data()[0])
    assert "not called" not in capsys.readouterr().out


@both
def test_what_a_hook_logs_at_the_validations_end_is_of_the_epoch(base: Base, tmp_path: Path) -> None:
    def ended(self: Any) -> None:
        self.log("val_seen", float(self.current_epoch))

    learner = learner_of(classifier(base, on_validation_epoch_end=ended), tmp_path)
    learner.fit()
    assert epoch_values(learner)["valid", "val_seen"] == [0.0, 1.0, 2.0]
    again = learner_of(classifier(base, on_validation_epoch_end=ended), tmp_path, resume=True)
    assert epoch_values(again)["valid", "val_seen"] == [0.0, 1.0, 2.0]


@both
def test_what_is_logged_after_the_epochs_values_is_told(base: Base, tmp_path: Path, capsys: Any) -> None:
    model = classifier(base, on_train_epoch_end=lambda self: self.log("late", 1.0), configure_optimizers=adam)
    LearnerBuilder(tmp_path).renderer("plain").num_epochs(2).build(model, train=data()[0]).fit()
    assert capsys.readouterr().out.count("self.log('late', ...) in on_train_epoch_end") == 1


@both
def test_a_name_that_a_metric_has_is_kept_apart(base: Base, tmp_path: Path) -> None:
    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", 2 * loss)
        return {"loss": loss}

    learner = learner_of(classifier(base, training_step=step), tmp_path)
    learner.fit()
    history = learner.history
    assert (history["train", "loss logged"] == 2 * history["train", "Loss"]).all()


@both
def test_a_step_that_skips_its_batch_is_refused_in_words(base: Base, tmp_path: Path) -> None:
    model = classifier(base, training_step=lambda self, batch, batch_idx: None)
    with pytest.raises(StepError, match="with which Lightning skips a batch"):
        learner_of(model, tmp_path).fit()


@both
def test_a_breakpoint_stops_before_the_first_write_of_a_manual_step(base: Base, tmp_path: Path) -> None:
    bad = torch.full((8, 4), float("nan"))  # the second optimizer sees it, after the first one has stepped
    builder = LearnerBuilder(tmp_path).renderer("silent").break_on(NonFinite())
    learner = builder.build(gan(base), train=[(torch.ones(8, 4),), (torch.zeros(8, 4),), (bad,)])
    learner.step(2)
    before = bits(learner.model)
    report = learner.step()
    assert report.why == "breakpoint"
    assert same(bits(learner.model), before)


@both
def test_a_metric_object_is_looked_for_once(base: Base, tmp_path: Path) -> None:
    walks: list[int] = []

    def named_modules(self: Any, *given: Any, **named: Any) -> Any:
        walks.append(1)
        return nn.Module.named_modules(self, *given, **named)

    def step(self: Any, batch: Any, batch_idx: int) -> Tensor:
        output = self.net(batch[0])
        self.accuracy(output, batch[1])
        walks.clear()
        self.log("train_acc", self.accuracy)
        walked.append(len(walks))
        return F.cross_entropy(output, batch[1])

    walked: list[int] = []
    learner = learner_of(classifier(base, training_step=step, named_modules=named_modules), tmp_path)
    learner.step(4)
    assert walked == [1, 0, 0, 0]


@both
def test_a_recorded_step_is_refused_in_words(base: Base, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="records one step, with its batch_idx"):
        LearnerBuilder(tmp_path).graph().build(classifier(base))


@both
def test_a_step_that_is_replaced_counts(base: Base, tmp_path: Path) -> None:
    model = classifier(base)
    learner = learner_of(model, tmp_path)
    learner.step(2)
    model.training_step = lambda batch, batch_idx: 0 * sum(each.sum() for each in model.parameters())
    learner.step()
    assert learner.history["train", "Loss"][-1] == 0.0


@both
def test_an_evaluation_uses_the_validation_step(base: Base, tmp_path: Path) -> None:
    learner = learner_of(classifier(base), tmp_path)
    learner.step(3)
    assert learner.evaluate(DataLoader(rows(), batch_size=10))["val_loss"] > 0
    learner.fit()
    theirs = classifier(lightning.LightningModule)
    by_lightning(theirs)
    assert same(bits(learner.model), bits(theirs))


def test_a_value_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).renderer("silent")
    learner = builder.on("epoch", lambda learner: learner.log("lost", 1.0)).build(model, adam(model))
    with pytest.raises(BusyError, match="runs between two steps"):
        learner.fit([(torch.ones(1, 1), torch.ones(1, 1))])


def epoch_values(learner: Any) -> dict[tuple[str, str], list[float]]:
    """The value of each finished epoch, as the summary has them."""
    values: dict[tuple[str, str], list[float]] = {}
    for past in learner.history.snapshot():
        for name, value in (past.finals or {}).items():
            values.setdefault((past.split, name), []).append(value)
    return values


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare")

    def setup(self, stage: str) -> None:
        self.calls.append(stage)
        self.train, self.valid = data()

    def train_dataloader(self) -> Any:
        return self.train

    def val_dataloader(self) -> Any:
        return self.valid


class Others:
    """Data by the same names, from elsewhere, without a validation."""

    def train_dataloader(self) -> Any:
        return data()[0]


@both
@pytest.mark.parametrize("when", ["build", "fit"])
def test_a_data_module_gives_the_loaders(base: Base, when: str, tmp_path: Path) -> None:
    theirs = classifier(lightning.LightningModule)
    by_lightning(theirs)
    module = Data()
    builder, model = LearnerBuilder(tmp_path).num_epochs(EPOCHS).renderer("silent"), classifier(base)
    torch.manual_seed(5)
    learner = builder.build(model, **({"train": module} if when == "build" else {}))
    if when == "fit":
        with pytest.raises(ConfigurationError, match="nothing to train on"):
            learner.step()
        learner.start(module)
        learner.pause()
    else:
        learner.step(4)
    learner.fit(module)
    assert same(bits(learner.model), bits(theirs))
    assert module.calls == ["prepare", "fit"], "the same module again changes nothing"


def test_a_data_module_may_have_the_training_data_alone(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    builder = LearnerBuilder(tmp_path).num_epochs(1).renderer("silent").loss(F.cross_entropy)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.fit(Others(), data()[1])
    assert learner.history.metrics("train") == learner.history.metrics("valid") == ("Loss",)

"""`evaluate` on several ranks: what one device finds, and no bit of the training moves."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
import torch
from fleet_support import TWO, Walked, batches, bits, learner_on, samples, train_loader, valid_loader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.errors import DataError, Paused, RankDied
from notebook_learner.event import Notice
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import AUROC, Accuracy, ConfusionMatrix, Loss, Precision


class Watched(InMemoryMetricLogger):
    """Keeps what is said to people."""

    def __init__(self):
        super().__init__()
        self.said = []

    def handle(self, event):
        super().handle(event)
        if isinstance(event, Notice):
            self.said.append(event.text)


def learner_with(devices, directory, data=None, **options):
    """A learner with data and dropout, and what it says."""
    told = Watched()
    configure = options.pop("configure", lambda builder: None)
    learner = learner_on(
        devices, directory, dropout=0.5, configure=lambda b: configure(b.metric_logger(told)), **options
    )
    learner._supplies.use(learner, "train", train_loader() if data is None else data)
    learner._supplies.use(learner, "valid", valid_loader())
    torch.manual_seed(5)
    return learner, told


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The bits of an epoch without a question in between."""
    learner, _ = learner_with(TWO, tmp_path_factory.mktemp("straight"), epochs=1)
    learner.fit()
    return bits(learner)


SETS = {
    "a loader": valid_loader(),
    "a list": batches(),
    "a loader of one's own": Walked(batches()),
    "a last batch of one sample": DataLoader(samples(34), batch_size=33),
    "workers": DataLoader(samples(), batch_size=16, num_workers=1),
}


def test_values_are_those_of_one_device_whatever_the_set(tmp_path):
    (one, _), (two, told) = (learner_with(devices, tmp_path / str(devices)) for devices in (None, TWO))
    theirs, ours = one.evaluate(SETS), two.evaluate(SETS)
    assert list(ours) == list(SETS)
    for name in SETS:
        assert (ours[name].batches, ours[name].place) == (theirs[name].batches, theirs[name].place)
        assert ours[name]["Accuracy"] == theirs[name]["Accuracy"]
        assert ours[name]["Loss"] == pytest.approx(theirs[name]["Loss"], rel=1e-6)
        for metric in ("Loss", "Accuracy"):  # of each step
            step = f"test/{name}"
            np.testing.assert_allclose(two.history[step, metric], one.history[step, metric], rtol=1e-6)
            np.testing.assert_array_equal(
                two.history.weights(metric, step), one.history.weights(metric, step)
            )
    assert two.devices[1].alive, "the other rank was there"
    assert told.said == []


def test_on_the_data_of_the_validation_they_are_its_values_to_the_bit(tmp_path):
    """With metrics given for this set alone, too: those that accumulate are merged, never averaged."""

    def configure(builder):
        builder.metrics(AUROC(), Precision.multiclass()).metric_valid(ConfusionMatrix())

    learner, told = learner_with(TWO, tmp_path, epochs=1, configure=configure)
    learner.fit()
    given = [Loss(), Accuracy(), AUROC(), Precision.multiclass(), ConfusionMatrix()]
    found = learner.evaluate(valid_loader(), metrics=given)
    validated = learner.history.snapshot()[-1]
    assert validated.split == "valid"
    assert dict(found) == dict(validated.finals)
    for name in ("Loss", "Accuracy"):
        assert learner.history["test/test", name].tolist() == learner.history["valid", name].tolist()
    assert (
        learner.history.texts("Confusion Matrix", "test/test")[-1]
        == (learner.history.texts("Confusion Matrix", "valid")[-1])
    )
    assert told.said == []


class Normed(nn.Module):
    """Its buffers differ from rank to rank after each step, and its steps draw."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


def drawing(model, batch):
    """A validation step that leaves traces wherever it can."""
    x, y = batch
    output = model(x) + 0.01 * torch.randn(len(x), 3)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor += 1
    return ClassificationOutput(F.cross_entropy(output, y), output, y)


def normed(directory, window):
    torch.manual_seed(1)
    model = Normed()
    builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(2).devices(TWO).renderer("silent")
    builder.metric_logger(InMemoryMetricLogger()).with_application_logger(False).grads_accumulation(window)
    loader = train_loader()
    learner = builder.valid_step(drawing).build(
        model, torch.optim.SGD(model.parameters(), 0.1, 0.9), None, loader, valid_loader()
    )
    torch.manual_seed(5)
    return learner, loader


@pytest.mark.parametrize("window", [1, 3])
def test_a_run_with_sets_in_between_is_the_straight_one_to_the_bit(window, tmp_path):
    """Before the first step, inside a window of batches, over the training's own loader, in validation."""

    def run(directory, *places):
        learner, own = normed(directory, window)
        for place in places:
            learner.run_until(place)
            first, again = (learner.evaluate(own, name) for name in ("first", "again"))
            assert dict(first) == dict(again)
            learner.predict(batches(), step=lambda model, batch: drawing(model, batch).output)
        learner.fit()
        buffers = [each.tolist() for each in learner.model.buffers()]
        return bits(learner), buffers, learner.history["train", "Loss"].tolist()

    straight = run(tmp_path / "straight")
    asked = run(tmp_path / "asked", (1, "train", 0), (1, "train", 4), (1, "valid", 2), (2, "train", 5))
    assert asked == straight


def test_the_other_ranks_streams_come_of_where_the_training_begins(tmp_path, straight):
    """And not of where rank 0's stood when a set was measured before."""
    learner, _ = learner_with(TWO, tmp_path, epochs=1)
    torch.manual_seed(99)
    learner.evaluate(valid_loader())
    torch.manual_seed(5)
    learner.fit()
    assert bits(learner) == straight


def test_a_set_comes_before_there_is_anything_to_train_on(tmp_path):
    learner = learner_on(TWO, tmp_path, epochs=1)
    alone = learner_on(None, tmp_path / "alone", epochs=1)
    assert learner.evaluate(valid_loader())["Loss"] == pytest.approx(alone.evaluate(valid_loader())["Loss"])
    learner.fit(train_loader())
    assert learner.status == "finished"


# Broken off ------------------------------------------------------------------------------------------


def failing_elsewhere():
    """A validation step that fails where another rank comes to a sample that is no number."""
    here = os.getpid()

    def step(model, batch):
        x, y = batch
        if os.getpid() != here and not bool(torch.isfinite(x).all()):
            raise ZeroDivisionError("of another rank")
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    return step


def poisoned(count=200):
    """Small batches; of the third, a sample that another rank has is no number."""
    x, y = torch.ones(4, 10), torch.zeros(4, dtype=torch.int64)
    bad = torch.cat([x[:3], torch.full((1, 10), torch.nan)])
    return [(bad if at == 2 else x, y) for at in range(count)]


def failing_sets():
    loader = DataLoader(TensorDataset(*(torch.cat(part) for part in zip(*poisoned(), strict=True))), 4)
    return {"each walks": loader, "rank 0 hands out": poisoned()}


def test_whoever_fails_is_named_and_the_training_goes_on_as_if_nothing_had_been(tmp_path, straight):
    learner, _ = learner_with(TWO, tmp_path, epochs=1, configure=lambda b: b.valid_step(failing_elsewhere()))
    step = failing_elsewhere()
    for name, data in failing_sets().items():
        with pytest.raises(ZeroDivisionError, match="of another rank") as failed:
            learner.evaluate(data, name)
        notes = "\n".join(failed.value.__notes__)
        assert "raised on rank 1" in notes
        assert f"evaluate {name}: this happened" in notes
        learner.step(2)
        assert name not in learner.tools.evaluations
        assert [each.alive for each in learner.devices] == [True, True]
    with pytest.raises(ZeroDivisionError):
        learner.predict(poisoned(), step=lambda model, batch: step(model, batch).output)
    learner.evaluate(valid_loader())
    learner.fit()
    assert bits(learner) == straight


def test_an_interrupt_breaks_it_off_at_a_boundary_of_all_ranks(tmp_path, straight):
    learner, _ = learner_with(TWO, tmp_path, epochs=1)
    learner.step(3)

    learner._driver.control.interrupt()
    with pytest.raises(Paused, match="predict: broken off after batch 1 of 7"):
        learner.predict(train_loader())
    learner._driver.control.interrupt()
    with pytest.raises(Paused, match="evaluate test: broken off after batch 1 of 4"):
        learner.evaluate(valid_loader())
    assert learner.tools.evaluations == {}
    assert learner.evaluate(valid_loader()).batches == 4
    learner.fit()
    assert bits(learner) == straight


@pytest.mark.soak
def test_a_second_interrupt_ends_it_inside_a_step_of_rank_0(tmp_path, straight):
    learner, _ = learner_with(TWO, tmp_path, epochs=1)
    learner.step(3)

    here = os.getpid()

    def hanging(output, batch):
        if os.getpid() == here:
            os.kill(here, signal.SIGINT)
            os.kill(here, signal.SIGINT)
        return output

    for data in (train_loader(), Walked(batches())):
        with pytest.raises(KeyboardInterrupt):
            learner.predict(data, hanging)
    learner.fit()
    assert bits(learner) == straight


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.soak
def test_a_rank_that_dies_meanwhile_is_told_and_restart_goes_on_to_the_same_bits(tmp_path, straight):
    learner, _ = learner_with(TWO, tmp_path, epochs=1)
    learner.step(3)

    here = os.getpid()

    def dying(output, batch):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return output

    with pytest.raises(RankDied) as died:
        learner.predict(valid_loader(), dying)
    assert died.value.rank == 1
    with pytest.raises(RankDied):
        learner.evaluate(valid_loader())
    learner.devices.restart()
    assert learner.evaluate(valid_loader()).batches == 4
    learner.fit()
    assert bits(learner) == straight


# On rank 0 alone -------------------------------------------------------------------------------------


class Spread(Loss):
    """The largest loss of a step; it keeps what no other rank could add to."""

    name = "Spread"

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.most = 0.0

    def update(self, item):
        self.most = max(self.most, float(item.loss))
        return super().update(item)

    def compute(self):
        return self.most


def test_a_metric_that_cannot_be_merged_is_measured_on_rank_0_alone_and_that_is_said(tmp_path):
    learner, told = learner_with(TWO, tmp_path)
    found = learner.evaluate(valid_loader(), metrics=[Spread()])
    assert found["Spread"] == max(learner.history["test/test", "Spread"])
    assert told.said == [
        "evaluate test: on rank 0 alone, since Spread keeps a state of its own: define merge(self, state), "
        "which adds another one's state_dict() to its own"
    ]
    assert [each.rank for each in learner.devices] == [0], "no process was started for it"


def test_batches_that_nobody_can_cut_are_measured_on_rank_0_alone(tmp_path):
    class Whole:
        """A batch of a class of its own."""

        def __init__(self, x, y):
            self.x, self.y = x, y

    def step(model, batch):
        output = model(batch.x)
        return ClassificationOutput(F.cross_entropy(output, batch.y), output, batch.y)

    learner, told = learner_with(TWO, tmp_path, configure=lambda b: b.valid_step(step))
    data = [Whole(*batch) for batch in batches()]
    assert learner.evaluate(data).batches == 4
    assert told.said[-1].startswith(
        "evaluate test: on rank 0 alone, since a batch of type Whole cannot be cut"
    )
    with pytest.raises(DataError, match="of type Whole cannot be cut"):
        learner.evaluate(iter(data))
    learner.step(3)
    assert [each.step for each in learner.devices] == [3, 3]


def test_data_that_cannot_be_sent_are_handed_out_by_rank_0(tmp_path):
    class Locked(TensorDataset):
        def __init__(self, *tensors):
            super().__init__(*tensors)
            self.lock = threading.Lock()

    learner, told = learner_with(TWO, tmp_path)
    locked = learner.evaluate(DataLoader(Locked(*samples().tensors), batch_size=33))
    assert dict(locked) == dict(learner.evaluate(valid_loader()))
    assert told.said == []

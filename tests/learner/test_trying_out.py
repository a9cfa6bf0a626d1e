"""`what_if`, `lr_find` and `fork`: from this very step, and nothing left behind."""

from __future__ import annotations

import math
import shutil
import signal
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from builder_support import Stream, adam, batches, by_hand, classifier, net, sgd
from exactness import differences, everything, logs
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Artifacts, ClassificationOutput, Paused, StateError
from notebook_learner.breakpoint import LossSpike
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.trial.lr_find import RateSearch

SCHEDULES = {
    "constant": lambda optimizer: 0.01,
    "cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=40),
    "epoch": lambda optimizer: StepLR(optimizer, 1),
    "function": lambda optimizer: lambda step: 0.05 / (1 + step),
}


def learner_of(directory, *, window=1, schedule="constant", data=None, epochs=3, configure=lambda b: b):
    model = net(dropout=0.3, seed=1)
    optimizer = adam(model)
    builder = classifier(directory).num_epochs(epochs).seed(5).metrics(Loss()).grads_accumulation(window)
    scheduler = SCHEDULES[schedule](optimizer)
    return configure(builder).build(model, optimizer, scheduler, data or batches(), batches()[:2])


def untouched(learner):
    """Everything that trying something out must leave as it is."""
    return {
        "state": everything(learner),
        "rng": torch.get_rng_state(),
        "modes": [module.training for module in learner.model.modules()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in learner.model.parameters()],
        "seen": (learner.position, learner.status, learner.num_epochs),
        "history": learner.history["train", "Loss"] if learner.position.iteration else None,
    }


def same(learner, before):
    return list(differences(untouched(learner), before)) == []


TRIALS = {
    "what_if": lambda learner: learner.what_if(6, lr=0.5, weight_decay=0.3),
    "lr_find": lambda learner: learner.tools.lr_find(1e-5, 50.0, steps=40),
}


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [0, 2, 3, 5])
def test_a_trial_leaves_nothing_behind_and_the_run_ends_in_the_same_bits(
    steps, schedule, window, trial, tmp_path
):
    straight = learner_of(tmp_path / "a", schedule=schedule, window=window)
    straight.fit()
    learner = learner_of(tmp_path / "b", schedule=schedule, window=window)
    if steps:
        learner.step(steps)
    before, written = untouched(learner), logs(tmp_path / "b")
    TRIALS[trial](learner)
    assert same(learner, before) and logs(tmp_path / "b") == written
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []


# what_if -----------------------------------------------------------------------------------------------


def test_both_courses_are_what_hand_written_loops_give(tmp_path):
    model = net(seed=1)
    learner = classifier(tmp_path).metrics().build(model, sgd(model), None, batches())
    found = learner.what_if(4, lr=0.7)
    for rate, values in ((0.1, found.baseline), (0.7, found.changed)):
        losses = []
        hand = net(seed=1)
        optimizer = sgd(hand, lr=rate)
        for x, y in batches():
            loss = F.cross_entropy(hand(x), y)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert values["loss"].tolist() == losses
    assert found.first_difference == (1, 2), "the first step measures before it learns"


def test_the_baseline_is_what_the_run_then_does(tmp_path):
    learner = learner_of(tmp_path, schedule="cycle")
    learner.step(2)
    found = learner.what_if(5, lr=1.0)
    learner.fit()
    assert found.baseline["Loss"].tolist() == learner.history["train", "Loss"][2:7].tolist()
    assert [place for place in found.courses[0].places] == [(1, 3), (1, 4), (2, 1), (2, 2), (2, 3)]


def test_a_tried_rate_stays_whatever_the_schedule(tmp_path):
    learner = learner_of(tmp_path, schedule="cycle", configure=lambda b: b)
    noted = Mock(return_value=None)  # a list that a hook fills is taken back, as all that steps change
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: noted(optimizer.param_groups[0]["lr"])
    )
    learner.what_if(3, lr=0.25)
    seen = [call.args[0] for call in noted.call_args_list]
    assert seen[3:] == [0.25] * 3 and len(set(seen[:3])) == 3


def test_another_step_another_batch_and_clipping_can_be_tried(tmp_path):
    def doubled(model, batch):
        x, y = batch
        output = model(x)
        return ClassificationOutput(2 * F.cross_entropy(output, y), output, y)

    learner = learner_of(tmp_path)
    found = learner.what_if(2, train_step=doubled)
    assert found.changed["loss"][0] == 2 * found.baseline["loss"][0]
    assert found.changes == {"train_step": "doubled"}

    mine = batches(seed=8)[0]
    found = learner.what_if(2, batch=mine)
    model = net(dropout=0.3, seed=1)
    model.load_state_dict(learner.model.state_dict())
    assert found.changed["loss"][0] != found.baseline["loss"][0] and found.first_difference == (1, 1)

    found = learner.what_if(3, clip_norm=1e-6)
    assert found.first_difference is not None
    assert learner.what_if(3, clip_norm=1e6).first_difference is None, "a bound that never bites"
    learner.fit()
    assert learner.status == "finished"


def test_groups_can_be_given_values_of_their_own(tmp_path):
    model = net(seed=1)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.2}], lr=0.1
    )
    learner = classifier(tmp_path).build(model, optimizer, None, batches())
    assert learner.what_if(2, lr=[0.1, 0.2]).first_difference is None
    with pytest.raises(ValueError, match="has 2 groups; give one value, or a list of 2"):
        learner.what_if(2, lr=[0.1])


def test_a_comparison_reads_well(tmp_path):
    learner = learner_of(tmp_path, epochs=30)
    learner.step(3)
    found = learner.what_if(25, lr=0.1)
    text = repr(found)
    assert text.startswith(
        "what if lr = 0.1, from epoch 1, train, step 3 of 4: first difference at epoch 2, step 1"
    )
    assert "…" in text and len(text.splitlines()) < 26
    assert len(found.table()) == 25 and found.table()[0]["epoch"] == 1
    assert len(found.to_pandas()) == 25
    assert found._repr_html_().count("<tr>") == 1 + 19 + 1 + 1
    figure = found.plot("Loss")
    assert [line.get_label() for line in figure.axes[0].lines] == ["as it is", "lr = 0.1"]
    assert figure.axes[0].lines[0].get_xdata()[0] == 4
    with pytest.raises(KeyError, match="they have loss, Loss"):
        found.plot("Accuracy")


@pytest.mark.parametrize(
    ("steps", "changes", "message"),
    [
        (5, {}, "it can change train_step, batch, clip_norm, lr"),
        (5, {"momentum": 0.9}, r"what_if\(momentum=...\): there is no momentum here"),
        (0, {"lr": 1}, r"what_if\(steps=0\): try a whole number of steps, from 1"),
        (1.5, {"lr": 1}, r"what_if\(steps=1.5\)"),
        (
            5,
            {"train_step": 3},
            r"what_if\(train_step=...\) is no step:\n  - an int; write def train_step\(model, batch\)",
        ),
        (5, {"clip_norm": -1}, r"what_if\(clip_norm=-1\): give a norm above 0"),
    ],
)
def test_what_cannot_be_tried_is_said(steps, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        learner_of(tmp_path).what_if(steps, **changes)


def test_what_was_changed_is_told_as_it_was_written(tmp_path):
    found = learner_of(tmp_path).what_if(2, betas=(0.5, 0.9), foreach=None, maximize=True)
    assert repr(found).startswith("what if betas = (0.5, 0.9), foreach = None, maximize = True, from ")


def test_a_change_that_fails_is_taken_back_too(tmp_path):
    learner = learner_of(tmp_path)
    learner.step(2)
    before = untouched(learner)

    def broken(model, batch):
        with torch.no_grad():
            model[0].weight.zero_()
        torch.rand(5)
        raise RuntimeError("no such layer")

    with pytest.raises(RuntimeError, match="no such layer"):
        learner.what_if(3, train_step=broken)
    assert same(learner, before)


def test_an_interrupt_takes_it_back_and_pauses(tmp_path):
    learner = learner_of(tmp_path)
    learner.step(2)
    before = untouched(learner)

    def interrupted(model, batch):
        signal.raise_signal(signal.SIGINT)
        x, y = batch
        return F.cross_entropy(model(x), y)

    with pytest.raises(Paused):
        learner.what_if(50, train_step=interrupted)
    assert same(learner, before)
    learner.fit()
    assert learner.status == "finished"


def test_where_no_step_can_be_taken_back_nothing_is_tried(tmp_path):
    model = net()
    learner = classifier(tmp_path / "a").build(model, adam(model), None, Stream(batches()))
    with pytest.raises(StateError, match="walked only once"):
        learner.what_if(lr=1.0)
    learner = learner_of(tmp_path / "b", epochs=1)
    learner.fit()
    with pytest.raises(StateError, match=r"fit\(epochs=n\)"):
        learner.tools.lr_find()


# lr_find -----------------------------------------------------------------------------------------------


def test_the_losses_are_those_of_a_loop_with_these_rates(tmp_path):
    data = batches((8,) * 12)
    model = net(seed=1)
    learner = classifier(tmp_path).metrics().build(model, sgd(model), None, data)
    found = learner.tools.lr_find(1e-4, 1.0, steps=20, growth=1e9)
    rates = np.geomspace(1e-4, 1.0, 20)
    assert found.rates.tolist() == rates.tolist()
    hand, losses = net(seed=1), []
    optimizer = sgd(hand)
    for step, rate in enumerate(rates):
        x, y = data[step % len(data)]
        optimizer.param_groups[0]["lr"] = float(rate)
        loss = F.cross_entropy(hand(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found.losses.tolist() == losses


def learnable(directory, loss=F.cross_entropy):
    source = torch.Generator().manual_seed(3)
    x = torch.randn(400, 6, generator=source)
    y = (x @ torch.randn(6, 3, generator=source)).argmax(1)
    model = net(seed=1)
    data = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    return classifier(directory).loss(loss).seed(1).build(model, sgd(model), None, data)


def test_it_suggests_a_rate_that_learns_and_ends_where_the_loss_explodes(tmp_path):
    learner = learnable(tmp_path)
    found = learner.tools.lr_find(1e-5, 1e5, steps=100)
    assert found.diverged and len(found.rates) < 100
    assert found.suggestion is not None and 1e-3 < found.suggestion < found.lowest < 1e3
    learner.optimizer.param_groups[0]["lr"] = found.suggestion
    first = float(learner.step().values["Loss"])
    assert learner.step(60).values["Loss"] < 0.7 * first
    assert repr(found).startswith("suggested learning rate: ") and "grew out of hand" in repr(found)
    figure = found.plot()
    assert figure.axes[0].get_xscale() == "log"


def test_without_a_fall_there_is_no_suggestion():
    rates = np.geomspace(1e-5, 1, 20)
    search = RateSearch(None, rates, np.linspace(1, 2, 20), np.linspace(1, 2, 20), False)
    assert search.suggestion is None and "the loss never fell" in repr(search)


def test_a_rate_that_makes_the_loss_nan_is_not_the_lowest(tmp_path):
    """Without growing beforehand: a logarithm or a root of something negative is NaN at once."""
    steps = []

    def loss(output, targets):
        steps.append(1)
        found = F.cross_entropy(output, targets)
        return found * math.nan if len(steps) == 30 else found

    found = learnable(tmp_path, loss).tools.lr_find(1e-3, 1.0, steps=40)
    assert found.diverged and len(found.rates) == 30 and math.isnan(found.smoothed[-1])
    before = RateSearch(None, found.rates[:-1], found.losses[:-1], found.smoothed[:-1], False)
    assert found.lowest == before.lowest and found.suggestion == before.suggestion is not None


def test_the_steepest_fall_is_suggested():
    rates = np.geomspace(1e-4, 1, 41)
    smoothed = 2 - np.tanh(4 * (np.log10(rates) + 2)) + np.where(rates > 0.2, rates, 0)
    search = RateSearch(None, rates, smoothed, smoothed, True)
    assert math.log10(search.suggestion) == pytest.approx(-2, abs=0.11)


def test_it_is_taken_back_when_interrupted(tmp_path):
    learner = learner_of(tmp_path)
    learner.step(2)
    before = untouched(learner)
    calls = Mock()  # what a hook counts itself is taken back, too

    def interrupting(optimizer, args, kwargs):
        calls()
        if calls.call_count == 4:
            signal.raise_signal(signal.SIGINT)

    hook = learner.optimizer.register_step_pre_hook(interrupting)
    with pytest.raises(Paused):
        learner.tools.lr_find(steps=50)
    hook.remove()
    assert calls.call_count == 4 and same(learner, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1, "end": 0.1}, "0 < start < end"),
        ({"end": math.inf}, "0 < start < end"),
        ({"steps": 3}, "at least 10 rates"),
        ({"steps": 20.5}, "at least 10 rates"),
        ({"growth": 1}, "a multiple above 1"),
        ({"smoothing": 1.0}, "from 0 to below 1"),
        ({"smoothing": -0.1}, "from 0 to below 1"),
    ],
)
def test_rates_that_make_no_sense_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        learner_of(tmp_path).tools.lr_find(**options)


# fork --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [0, 2, 5])
@pytest.mark.rounds(6)
def test_two_siblings_that_step_in_turn_both_end_in_the_straight_runs_bits(steps, schedule, window, tmp_path):
    straight = learner_of(tmp_path / "straight", schedule=schedule, window=window)
    straight.fit()
    learner = learner_of(tmp_path / "parent", schedule=schedule, window=window)
    if steps:
        learner.step(steps)
    sibling = learner.fork(tmp_path / "child")
    assert sibling.model is not learner.model and sibling.position == learner.position
    while learner.status != "finished" or sibling.status != "finished":
        learner.step(2)
        sibling.step(3)
    for each, name in ((learner, "parent"), (sibling, "child")):
        assert list(differences(everything(each), everything(straight))) == [], name
        assert logs(tmp_path / name) == logs(tmp_path / "straight"), name


def shuffled(generator=None):
    source = torch.Generator().manual_seed(3)
    x, y = torch.randn(40, 6, generator=source), torch.randint(0, 3, (40,), generator=source)
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=generator)


def test_siblings_of_an_unseeded_run_do_not_share_a_generator(tmp_path):
    def unseeded(directory):
        model = net(seed=1)
        builder = classifier(directory).num_epochs(3)
        return builder.build(model, adam(model), None, shuffled(torch.Generator().manual_seed(4)))

    straight = unseeded(tmp_path / "a")
    straight.fit()
    learner = unseeded(tmp_path / "b")
    learner.step(3)
    sibling = learner.fork(tmp_path / "c")
    while learner.status != "finished":
        sibling.step(1) if sibling.status != "finished" else None
        learner.step(1)
    assert list(differences(everything(learner), everything(straight))) == []
    sibling.fit() if sibling.status != "finished" else None
    assert list(differences(everything(sibling)["model"], everything(straight)["model"])) == []


def test_a_change_to_one_is_none_to_the_other(tmp_path):
    straight = learner_of(tmp_path / "a")
    straight.fit()
    learner = learner_of(tmp_path / "b")
    learner.step(3)
    sibling = learner.fork(tmp_path / "c")
    sibling.optimizer.param_groups[0]["lr"] = 0.5
    sibling.fit()
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    assert list(differences(everything(sibling)["model"], everything(straight)["model"])) != []


def test_both_runs_tell_where_they_parted(tmp_path):
    learner = learner_of(tmp_path / "parent", configure=lambda b: b.with_application_logger(True))
    learner.step(3)
    sibling = learner.fork(tmp_path / "child")
    where = f"{tmp_path / 'parent'} at epoch 1, train, step 3 of 4, training step 3"
    assert sibling.summary().settings["forked from"] == where
    assert [mark.kind for mark in learner.history.marks] == ["paused", "forked"]
    sibling.fit()
    told = sibling.artifacts
    assert told.run.settings["forked from"] == where
    assert (
        f"forked at epoch 1, train, step 3: from {where}" in (tmp_path / "child/experiment.log").read_text()
    )
    assert f"to {tmp_path / 'child'}" in (tmp_path / "parent/experiment.log").read_text()


def test_a_comparison_draws_the_sibling_from_where_they_parted(tmp_path):
    learner = learner_of(tmp_path / "parent", epochs=5)
    learner.run_until((3, "train", 2))
    sibling = learner.fork(tmp_path / "child")
    sibling.optimizer.param_groups[0]["lr"] = 0.2
    learner.fit()
    sibling.fit()
    both = Artifacts.compare([learner.artifacts, sibling.artifacts])
    parent, child = both.plot("Loss", "valid").axes[0].lines
    assert parent.get_xdata().tolist() == [1, 2, 3, 4, 5] and child.get_xdata().tolist() == [2, 3, 4, 5]
    assert parent.get_ydata()[1] == child.get_ydata()[0], "it begins at a point of its parent: no gap"
    (alone,) = Artifacts.compare([sibling.artifacts]).plot("Loss", "valid").axes[0].lines
    assert alone.get_xdata().tolist() == [1, 2, 3, 4, 5], "without its parent it has all of its own curve"
    (tmp_path / "moved").mkdir()
    for name in ("parent", "child"):
        shutil.copytree(tmp_path / name, tmp_path / "moved" / name)
    moved = Artifacts.compare([tmp_path / "moved" / name for name in ("parent", "child")])
    assert moved.plot("Loss", "valid").axes[0].lines[1].get_xdata().tolist() == [2, 3, 4, 5]


def test_everything_that_was_asked_for_goes_along(tmp_path):
    learner = learner_of(
        tmp_path / "a",
        configure=lambda b: (
            b.metrics(Accuracy())
            .ema(0.9)
            .early_stopping("Loss", 50)
            .with_file_checkpointer()
            .break_on(lambda moment: moment.iteration == 7)
        ),
    )
    learner.num_epochs = 5
    learner.breakpoints.add(LossSpike(), name="mine").on = False
    learner.step(5)
    sibling = learner.fork(tmp_path / "b")
    assert sibling.num_epochs == 5 and sibling.tools.ema_model is not learner.tools.ema_model
    assert repr(sibling.breakpoints) == repr(learner.breakpoints)
    assert sibling.breakpoints["mine"].condition is not learner.breakpoints["mine"].condition
    with pytest.raises(Paused):
        sibling.fit()
    assert sibling.position.iteration == 6 and sibling.breakpoints[1].hits == 1
    assert (tmp_path / "b/checkpoint").is_dir()
    sibling.fit()
    assert sibling.status == "finished" and learner.position.iteration == 4


def test_a_plateau_scheduler_moves_with_its_own_optimizer(tmp_path):
    model = net(seed=1)
    optimizer = adam(model)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)
    learner = classifier(tmp_path / "a").metrics(Loss()).num_epochs(4)
    learner = learner.build(model, optimizer, scheduler, batches(), batches()[:1])
    learner.step(2)
    sibling = learner.fork(tmp_path / "b")
    sibling.fit()
    assert sibling.optimizer.param_groups[0]["lr"] < optimizer.param_groups[0]["lr"]


def test_a_place_that_is_taken_and_what_cannot_be_copied_is_refused(tmp_path):
    learner = learner_of(tmp_path / "a")
    learner.step()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(StateError, match="not an empty folder"):
        learner.fork(tmp_path / "full")
    with pytest.raises(StateError, match=r"not an empty folder|own directory"):
        learner.fork(tmp_path / "a")
    learner.model.kept = learner.output.output
    with pytest.raises(StateError, match="cannot be copied"):
        learner.fork(tmp_path / "b")
    assert not (tmp_path / "b").exists() and [m.kind for m in learner.history.marks] == ["paused"]


def test_by_hand_is_what_the_helpers_say():
    """The control of this file's comparisons: another rate gives other bits."""
    one, other = net(seed=1), net(seed=1)
    by_hand(one, sgd(one), batches())
    by_hand(other, sgd(other, lr=0.2), batches())
    assert list(differences(dict(one.state_dict()), dict(other.state_dict()))) != []


# New code for a live model -----------------------------------------------------------------------------


def class_of(body, name="Edited"):
    """A class as a cell defines it, in the notebook's own module, with its source at hand."""
    import linecache
    import sys

    imports = "from torch import nn\nimport torch\nfrom torch.nn import functional as F\n"
    source = f"{imports}class {name}(nn.Module):\n{body}"
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = vars(sys.modules["__main__"])
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


INIT = "    def __init__(self):\n        super().__init__()\n        self.line = nn.Linear(6, 3)\n"
STEP = (
    "    def valid_step(self, batch):\n        x, y = batch\n"
    "        return F.cross_entropy(self.line(x){change}, y)\n    train_step = valid_step\n"
)


@pytest.fixture
def main_module(monkeypatch):
    """The class is taken out of `__main__` again."""
    import sys

    yield
    vars(sys.modules["__main__"]).pop("Edited", None)


def test_an_edited_class_takes_over_at_the_boundary_with_its_steps(tmp_path, main_module):
    torch.manual_seed(2)
    model = class_of(INIT + STEP.format(change=""))()
    builder = classifier(tmp_path).num_epochs(2)
    builder._settings.loss = None
    learner = builder.build(model, sgd(model), None, batches(), batches()[:1])
    learner.step(2)
    kept = [p.detach().clone() for p in model.parameters()]
    class_of(INIT + STEP.format(change=" * 3"))
    report = learner.tools.reload_code()
    assert "Edited" in repr(report)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))
    x, y = batches()[2]
    expected = F.cross_entropy(model.line(x) * 3, y).item()
    assert learner.step().values["Loss"] == pytest.approx(expected, rel=1e-6)
    assert learner.history.marks[-1].kind == "edited" or learner.history.marks[-2].kind == "edited"
    learner.fit()
    assert learner.status == "finished"


def test_a_class_that_needs_other_parameters_is_refused_by_name(tmp_path, main_module):
    model = class_of(INIT + STEP.format(change=""))()
    builder = classifier(tmp_path)
    builder._settings.loss = None
    learner = builder.build(model, sgd(model), None, batches())
    learner.step()
    old = type(model)
    class_of(INIT + "        self.more = nn.Linear(3, 3)\n" + STEP.format(change=""))
    with pytest.raises(StateError, match="more"):
        learner.tools.reload_code()
    assert type(model) is old and learner.history.marks[-1].kind != "edited"
    learner.fit()


def test_trying_out_logs_no_metric_of_its_own(tmp_path):
    from builder_support import Tape

    from notebook_learner.event import MetricAdded

    told, holder = Tape(), []

    def logging(model, batch):
        x, y = batch
        output = model(x)
        holder[0].log("Margin", output.max())
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    learner = learner_of(tmp_path, configure=lambda b: b.renderer(told))
    holder.append(learner)
    learner.step(1)
    found = learner.what_if(2, train_step=logging)
    assert "Margin" in found.changed and "Margin" not in found.baseline
    learner.step(1)
    assert not told.of(MetricAdded) and "Margin" not in learner.history.metrics("train")

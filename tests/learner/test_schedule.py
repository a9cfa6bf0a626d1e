"""When the learning rate moves, and to what: against torch's schedulers stepped by hand."""

from __future__ import annotations

import pytest
import torch
from builder_support import assert_same_bits, batches, by_hand, classifier, net, quiet, rates, sgd
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from notebook_learner import ConfigurationError, RegressionOutput, StateError
from notebook_learner.metric import Accuracy, LearningRate, Loss
from notebook_learner.step.schedule import Torch

EPOCHS, STEPS = 3, 4

SCHEDULERS = {
    "StepLR": (lambda o: StepLR(o, step_size=2, gamma=0.1), "epoch"),
    "ExponentialLR": (lambda o: ExponentialLR(o, 0.5), "epoch"),
    "CosineAnnealingLR": (lambda o: CosineAnnealingLR(o, T_max=EPOCHS), "epoch"),
    "SequentialLR": (
        lambda o: SequentialLR(o, [LinearLR(o, total_iters=1), ExponentialLR(o, 0.9)], milestones=[1]),
        "epoch",
    ),
    "OneCycleLR": (lambda o: OneCycleLR(o, max_lr=0.5, total_steps=EPOCHS * STEPS), "step"),
    "CyclicLR": (lambda o: CyclicLR(o, base_lr=0.01, max_lr=0.2, step_size_up=3), "step"),
    "a chain with a member of steps": (
        lambda o: ChainedScheduler([OneCycleLR(o, max_lr=0.5, total_steps=EPOCHS * STEPS)]),
        "step",
    ),
}


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def rates_by_hand(make, when):
    """What a hand-written loop trains with, and the model it ends with."""
    model = net()
    optimizer = momentum(model)
    scheduler = make(optimizer)
    seen = []
    hooks = {"after_step": scheduler.step} if when == "step" else {"after_epoch": scheduler.step}
    note = lambda: seen.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    by_hand(model, optimizer, batches(), epochs=EPOCHS, before_step=note, **hooks)
    return seen, model


@pytest.mark.parametrize("given", ["instance", "factory"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_torchs_schedulers_move_as_torch_documents_them(kind, given, tmp_path):
    make, when = SCHEDULERS[kind]
    expected, reference = rates_by_hand(make, when)
    model = net()
    optimizer = momentum(model)
    scheduler = make(optimizer) if given == "instance" else make
    builder = classifier(tmp_path).metric_train(LearningRate()).num_epochs(EPOCHS)
    learner = builder.build(model, optimizer, scheduler)
    learner.fit(batches())
    assert rates(learner) == expected
    assert len(set(expected)) > 1
    assert_same_bits(model, reference)


@pytest.mark.parametrize(("kind", "when"), [("StepLR", "step"), ("OneCycleLR", "epoch")])
def test_a_word_of_the_user_overrides_the_custom(kind, when, tmp_path):
    make, usual = SCHEDULERS[kind]
    assert when != usual
    expected, _ = rates_by_hand(make, when)
    model = net()
    builder = classifier(tmp_path).metric_train(LearningRate()).num_epochs(EPOCHS).step_scheduler(when)
    learner = builder.build(model, momentum(model), make)
    learner.fit(batches())
    assert rates(learner) == expected


def test_a_number_is_a_constant_rate_for_every_group(tmp_path):
    model, expected = net(), net()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    builder = classifier(tmp_path).metric_train(LearningRate()).num_epochs(2)
    learner = builder.build(model, optimizer, 0.02)
    learner.fit(batches())
    assert rates(learner) == [0.02] * 8
    assert_same_bits(model, by_hand(expected, sgd(expected, 0.02), batches(), epochs=2))


def test_without_a_scheduler_the_optimizer_keeps_its_rates(tmp_path):
    model, expected = net(), net()

    def grouped(model):
        groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[3].parameters()}]
        return torch.optim.SGD(groups, lr=0.1)

    classifier(tmp_path).build(model, grouped(model)).fit(batches())
    assert_same_bits(model, by_hand(expected, grouped(expected), batches()))


def test_a_rate_may_be_a_whole_number(tmp_path):
    model = net()
    learner = classifier(tmp_path).metric_train(LearningRate()).build(model, sgd(model), 0)
    learner.fit(batches())
    assert rates(learner) == [0.0] * 4


def test_a_function_gives_the_rate_of_every_optimizer_step(tmp_path):
    model = net()
    builder = classifier(tmp_path).metric_train(LearningRate()).num_epochs(2)
    learner = builder.build(model, sgd(model), lambda step: 0.1 / (1 + step))
    learner.fit(batches())
    assert rates(learner) == [0.1 / (1 + step) for step in range(8)]


def test_a_function_gives_the_rate_of_every_epoch_where_that_is_asked_for(tmp_path):
    model = net()
    builder = classifier(tmp_path).metric_train(LearningRate()).num_epochs(3).step_scheduler("epoch")
    learner = builder.build(model, sgd(model), lambda epoch: torch.tensor(0.5) ** epoch)
    learner.fit(batches())
    assert rates(learner) == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_a_tensor_rate_stays_the_same_tensor(tmp_path):
    model = net()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    builder = classifier(tmp_path).metric_train(LearningRate())
    learner = builder.build(model, optimizer, lambda step: 0.5**step)
    learner.fit(batches())
    assert optimizer.param_groups[0]["lr"] is rate
    assert rates(learner) == [1.0, 0.5, 0.25, 0.125], "each step's own, though the tensor has moved on"
    assert rate.item() == 0.5**4


SAVED = {
    **{kind: make for kind, (make, _) in SCHEDULERS.items()},
    "a function": lambda step: 0.1 / (1 + step),
}


@pytest.mark.parametrize("steps", [2, 4, 5])
@pytest.mark.parametrize("kind", SAVED)
def test_a_schedule_goes_on_from_a_restored_state_as_it_would_have(kind, steps, tmp_path):
    """Inside an epoch, between the splits, and before the first epoch's end in a fresh optimizer."""

    def learner(name):
        model = net()
        builder = classifier(tmp_path / name).metric_train(LearningRate()).num_epochs(EPOCHS)
        return builder.build(model, momentum(model), SAVED[kind], batches(), batches((2,)))

    straight = learner("straight")
    straight.step(steps)
    state = straight.capture()
    straight.fit()
    again = learner("again")
    again.restore(state)
    again.fit()
    assert rates(again) == rates(straight)
    assert_same_bits(again.model, straight.model)


# ReduceLROnPlateau -----------------------------------------------------------------------------------


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=1e-9)


def rising(directory, values):
    """A builder whose validation loss takes these values, epoch by epoch."""
    left = list(values)

    def valid(model, batch):
        return RegressionOutput(torch.tensor(left.pop(0)), model(batch[0]), batch[1])

    return classifier(directory).valid_step(valid).num_epochs(len(values)).metrics(Loss(), LearningRate())


def test_a_plateau_scheduler_goes_by_the_validation_loss(tmp_path):
    model = net()
    learner = rising(tmp_path, [1.0, 0.5, 0.7, 0.6]).build(model, sgd(model), plateau)
    learner.fit(batches((4,)), batches((4,)))
    assert rates(learner) == pytest.approx([0.1, 0.1, 0.1, 0.01])
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_plateau_scheduler_may_go_by_another_metric(tmp_path):
    def by_accuracy(optimizer):
        return ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0, eps=0)

    model = net()
    builder = classifier(tmp_path).metrics(Accuracy()).metric_train(LearningRate()).num_epochs(3)
    builder.step_scheduler("epoch", metric=("train", "Accuracy"))
    learner = builder.build(model, sgd(model, 1e-9), by_accuracy)  # too slow for any answer to change
    learner.fit(batches((8,)))
    assert rates(learner) == [1e-9, 1e-9, 5e-10]


def test_a_plateau_scheduler_without_validation_is_told_before_training(tmp_path):
    model, before = net(), net()
    learner = classifier(tmp_path).build(model, sgd(model), plateau)
    with pytest.raises(ConfigurationError, match="ReduceLROnPlateau goes by the valid Loss, but there is no"):
        learner.fit(batches())
    assert_same_bits(model, before)
    learner.fit(batches(), batches())
    assert learner.status == "finished"


# What is told of it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "when", "said"),
    [
        (None, None, "as the optimizer has it"),
        (1e-3, None, "constant 0.001"),
        (lambda step: 0.1, None, "a function, per optimizer step"),
        (lambda step: 0.1, "epoch", "a function, per epoch"),
        (lambda o: StepLR(o, 2), None, "StepLR, per epoch"),
        (lambda o: StepLR(o, 2), "step", "StepLR, per optimizer step"),
        (lambda o: OneCycleLR(o, 0.1, total_steps=9), None, "OneCycleLR, per optimizer step"),
        (plateau, None, "ReduceLROnPlateau, per epoch, by valid Loss"),
    ],
)
def test_the_summary_says_which_schedule_applies(scheduler, when, said, tmp_path):
    model = net()
    builder = classifier(tmp_path)
    if when is not None:
        builder.step_scheduler(when)
    learner = builder.build(model, sgd(model), scheduler)
    assert learner.summary().settings["learning rate"] == said


def test_the_learner_shows_the_scheduler_that_a_factory_made(tmp_path):
    model = net()
    learner = classifier(tmp_path).num_epochs(2).build(model, sgd(model), lambda o: StepLR(o, 1, gamma=0.5))
    learner.fit(batches())
    assert learner.scheduler.get_last_lr() == [0.025]
    assert (
        quiet(tmp_path).train_step(lambda m, b: m(b[0]).sum()).build(model, sgd(model), 0.5).scheduler == 0.5
    )


FOREIGN = {
    "a method's name": lambda state: state.update(step="now"),
    "another kind": lambda state: state.update(last_epoch=[1]),
    "a list where numbers are": lambda state: state.update(_last_lr=[[0.1]]),
    "a method's name in the first part": lambda state: state["_schedulers"][0].update(step="now"),
    "a method's name in the last part": lambda state: state["_schedulers"][1].update(step="now"),
    "another kind in the last part": lambda state: state["_schedulers"][1].update(gamma=[0.8]),
    "a word for a part": lambda state: state["_schedulers"].__setitem__(1, "exponential"),
    "a part too many": lambda state: state["_schedulers"].append({"step": "now"}),
}


@pytest.mark.parametrize("change", FOREIGN)
def test_a_state_of_another_scheduler_is_refused_however_deep_it_differs(change):
    """torch would write each value over an attribute, or over a method, of one of the schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    parts = [LinearLR(optimizer), ExponentialLR(optimizer, 0.8)]
    schedule = Torch(SequentialLR(optimizer, parts, milestones=[3]))
    state = schedule.capture()
    schedule.restore(state)
    FOREIGN[change](state)
    with pytest.raises(StateError, match="captured from another"):
        schedule.restore(state)
    assert callable(schedule.scheduler.step)

"""Breakpoints: a training stops before the update of the step that hits, and can be looked at there."""

from __future__ import annotations

import threading

import pytest
import torch
from builder_support import Tape, adam, assert_same_bits, batches, by_hand, classifier, mistakes_of, net, sgd
from exactness import differences, everything, logs
from torch.nn import functional as F

from notebook_learner import ClassificationOutput, Paused
from notebook_learner.breakpoint import (
    AtStep,
    DeadUnits,
    EveryNSteps,
    GradNorm,
    LossSpike,
    MetricIs,
    NonFinite,
    UpdateRatio,
)
from notebook_learner.event import Marked, Rewound, StatusChanged
from notebook_learner.metric import Loss

STEPS, EPOCHS = 4, 3
CONDITIONS = {
    "planned": lambda: EveryNSteps(5),
    "measured after backward": lambda: LossSpike(z=0.5, warmup=2),
    "measured before the update": lambda: GradNorm(above=0.6),
    "measured after the step": lambda: UpdateRatio(above=0.02),
    "asked": lambda: lambda moment: moment.iteration in (1, 3, 7, 8),
    "of a metric": lambda: MetricIs("Loss", ">", 1.1),
    "of a metric of validation": lambda: MetricIs("Loss", ">", 0, split="valid"),
}


def learner_with(directory, *conditions, window=1, precision="fp32", epochs=EPOCHS, configure=lambda b: b):
    model = net(dropout=0.3, seed=1)
    builder = classifier(directory).num_epochs(epochs).seed(5).grads_accumulation(window)
    builder.metrics(Loss()).precision(precision).break_on(*conditions)
    return configure(builder).build(model, adam(model), 0.01, batches(), batches()[:2])


def run_through(learner, at_each=lambda learner: None):
    """`fit` to the end, however often it stops; where it stopped."""
    places = []
    while learner.status != "finished":
        try:
            learner.fit()
        except Paused:
            places.append(learner.position)
            at_each(learner)
    return places


# Where it stops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("kind", CONDITIONS)
def test_any_number_of_stops_leaves_the_bits_and_the_logs_of_the_straight_run(kind, window, tmp_path):
    straight = learner_with(tmp_path / "straight", window=window)
    straight.fit()
    learner = learner_with(tmp_path / "stopped", CONDITIONS[kind](), window=window)
    places = run_through(learner)
    assert places and len(set(place.key for place in places)) == len(places)
    assert learner.breakpoints[1].hits == len(places)
    assert list(differences(everything(learner), everything(straight))) == []
    assert logs(tmp_path / "stopped") == logs(tmp_path / "straight")


def test_it_stops_before_the_very_step_and_nothing_of_it_is_recorded(tmp_path):
    learner = learner_with(tmp_path, AtStep(3, epoch=2))
    with pytest.raises(Paused, match=r"stopped by AtStep\(3, epoch=2\); it stands at epoch 2, train, step 2"):
        learner.fit()
    assert (learner.position.epoch, learner.position.step) == (2, 2)
    assert len(learner.history["train", "Loss", 2]) == 2
    hand = net(dropout=0.3, seed=1)
    assert_same_bits_after(learner, hand, steps=6, tmp_path=tmp_path)


def assert_same_bits_after(learner, hand, *, steps, tmp_path):
    other = learner_with(tmp_path / "other")
    while other.position.iteration < steps:
        other.step()
    assert_same_bits(learner.model, other.model)


def test_a_measured_hit_stops_at_the_first_step_that_does(tmp_path):
    """Found with the block, long after; a hand-written loop says which step it was."""
    norms = []
    model = net(seed=1)
    optimizer = sgd(model)
    grads = lambda: [p.grad for p in model.parameters()]  # noqa: E731
    by_hand(
        model,
        optimizer,
        batches(),
        epochs=EPOCHS,
        before_step=lambda: norms.append(float(torch.nn.utils.get_total_norm(grads()))),
    )
    limit = sorted(norms)[-3]
    expected = [step for step, norm in enumerate(norms) if norm > limit]
    model = net(seed=1)
    learner = (
        classifier(tmp_path)
        .num_epochs(EPOCHS)
        .break_on(GradNorm(above=limit))
        .build(model, sgd(model), None, batches())
    )
    places = run_through(learner)
    assert [place.iteration for place in places] == expected


def test_every_n_steps_stops_before_the_first_step_of_the_next_epoch_not_after_the_last(tmp_path):
    places = run_through(learner_with(tmp_path, EveryNSteps(5)))
    assert [(p.epoch, p.split, p.step) for p in places] == [(2, "train", 0), (3, "train", 1)]


def test_a_metric_of_validation_stops_after_the_step(tmp_path):
    learner = learner_with(tmp_path, MetricIs("Loss", ">", 0, split="valid"))
    places = run_through(learner)
    assert [(p.epoch, p.split, p.step) for p in places] == [
        (e, "valid", s) for e in (1, 2, 3) for s in (1, 2)
    ]


def test_several_breakpoints_stop_at_the_earliest(tmp_path):
    learner = learner_with(tmp_path, AtStep(7), lambda moment: moment.iteration == 3, AtStep(3))
    with pytest.raises(Paused):
        learner.fit()
    assert learner.position.iteration == 2
    assert [each.hits for each in learner.breakpoints] in ([0, 0, 1], [0, 1, 0])
    with pytest.raises(Paused, match=r"AtStep\(7\)"):
        learner.fit()


# What is alive there -----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2])
def test_batch_output_graph_and_gradients_are_those_of_the_step_at_hand(window, tmp_path):
    learner = learner_with(tmp_path, AtStep(3 if window == 1 else 4), window=window)
    with pytest.raises(Paused):
        learner.fit()
    last = learner.position.step
    assert learner.batch[0] is batches_of(learner)[last][0]
    (again,) = torch.autograd.grad(learner.output.loss, learner.model[0].weight, retain_graph=True)
    assert again.abs().sum() > 0
    # By hand: the weights of now, and the batches of the window.
    model = learner.model
    shown = [p.grad.clone() for p in model.parameters()]
    model.eval()
    assert all(grad is not None and grad.isfinite().all() for grad in shown)
    if window == 1:
        for mine, parameter in zip(shown, model.parameters(), strict=True):
            expected = torch.autograd.grad(learner.output.loss, parameter, retain_graph=True)[0]
            assert torch.equal(mine, expected)


def batches_of(learner):
    return learner._replica.loop.passes["train"].cursor.loader


def test_the_gradients_of_a_window_are_shown_as_the_optimizer_would_get_them(tmp_path):
    """The window's own half is kept aside, and comes back."""
    learner = learner_with(tmp_path / "a", AtStep(2), window=2)
    with pytest.raises(Paused):
        learner.fit()
    model = net(seed=1)
    # No dropout in this check: gradients of the window by hand, as one batch of both.
    plain = classifier(tmp_path / "b").grads_accumulation(2).break_on(AtStep(2)).num_epochs(1)
    plain = plain.build(model, sgd(model), None, batches())
    with pytest.raises(Paused):
        plain.fit()
    hand = net(seed=1)
    x = torch.cat([batch[0] for batch in batches()[:2]])
    y = torch.cat([batch[1] for batch in batches()[:2]])
    F.cross_entropy(hand(x), y).backward()
    for mine, theirs in zip(model.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    state = plain.capture()
    assert state.parts["window"]["count"] == 1
    own = torch.autograd.grad(
        F.cross_entropy(hand(batches()[0][0]), batches()[0][1]), list(hand.parameters())
    )
    for saved, expected in zip(state.parts["window"]["grads"], own, strict=True):
        torch.testing.assert_close(saved, expected, rtol=1e-5, atol=1e-7)


def test_what_a_person_changes_there_holds(tmp_path):
    """The state is that of the boundary, not put back when it goes on."""
    learner = learner_with(tmp_path / "a", AtStep(3))
    with pytest.raises(Paused):
        learner.fit()
    learner.optimizer.param_groups[0]["weight_decay"] = 0.5
    learner.fit()
    other = learner_with(tmp_path / "b")
    other.step(2)
    other.optimizer.param_groups[0]["weight_decay"] = 0.5
    other.fit()
    assert list(differences(everything(learner), everything(other))) == []


# Switching, and going on -------------------------------------------------------------------------------


def test_going_on_takes_the_step_and_rewinding_makes_it_hit_again(tmp_path):
    learner = learner_with(tmp_path, AtStep(3))
    with pytest.raises(Paused):
        learner.fit()
    learner.step()
    assert learner.position.iteration == 3
    learner.rewind(2)
    with pytest.raises(Paused):
        learner.fit()
    assert learner.position.iteration == 2 and learner.breakpoints[1].hits == 2


@pytest.mark.parametrize("condition", [lambda moment: moment.iteration == 4, MetricIs("Loss", ">", -1)])
def test_a_report_counts_no_step_that_was_taken_back_or_again(condition, tmp_path):
    learner = learner_with(tmp_path)
    learner.step()
    learner.breakpoints.add(condition)
    report = learner.step(10)
    assert report.why == "breakpoint"
    assert report.steps == learner.position.step - 1


def test_the_stepping_verbs_stop_too_and_say_so(tmp_path):
    learner = learner_with(tmp_path, AtStep(3))
    report = learner.step(10)
    assert (report.why, report.steps, report.reason) == ("breakpoint", 2, "AtStep(3)")
    assert str(report).startswith("2 steps taken, stopped before the next update, at epoch 1, train, step 2")
    assert learner.status == "paused" and learner.hit.name == "AtStep(3)"
    assert learner.step(2).why == "budget" and learner.hit is None


def test_one_that_is_off_or_removed_or_spent_does_not_stop(tmp_path):
    learner = learner_with(tmp_path, EveryNSteps(1))
    learner.breakpoints[1].on = False
    learner.step(2)
    learner.breakpoints.clear()
    learner.step(2)
    once = learner.breakpoints.add(lambda moment: True, once=True)
    with pytest.raises(Paused):
        learner.fit()
    learner.fit()
    assert (once.hits, once.on, learner.status) == (1, False, "finished")


def test_it_can_be_set_while_the_training_runs(tmp_path):
    learner = learner_with(tmp_path, epochs=10**6)
    learner.start()
    while learner.position.iteration < 10:
        threading.Event().wait(0.01)
    learner.breakpoints.add(lambda moment: True)
    with pytest.raises(Paused, match="stopped by a function"):
        learner.wait()
    assert learner.status == "paused" and learner.hit is not None


def test_a_hit_is_told_to_history_logs_and_listeners(tmp_path):
    told = Tape()
    learner = learner_with(
        tmp_path, AtStep(2), configure=lambda b: b.renderer(told).with_application_logger(True)
    )
    with pytest.raises(Paused):
        learner.fit()
    assert [(each.kind, each.step, each.text) for each in told.of(Marked)] == [("breakpoint", 1, "AtStep(2)")]
    assert told.of(StatusChanged)[-1].reason == "AtStep(2)"
    assert [mark.kind for mark in learner.history.marks] == ["breakpoint"]
    assert not told.of(Rewound), "a stop is no way back that anybody would have to hear of"
    lines = (tmp_path / "experiment.log").read_text()
    assert "breakpoint at epoch 1, train, step 1: AtStep(2)" in lines
    kinds = [mark.kind for mark in learner.artifacts.timeline]
    assert "breakpoint" in kinds


# At no cost --------------------------------------------------------------------------------------------


def test_without_a_breakpoint_nothing_looks_at_a_step(tmp_path):
    seen = []
    learner = learner_with(tmp_path)
    step = learner._replica.loop.passes["train"].step
    function = step.function
    step.function = lambda batch: (
        seen.append((step.look, learner._replica.loop.update.look)),
        function(batch),
    )[1]
    learner.step(2)
    learner.breakpoints.add(AtStep(99))
    learner.step(2)
    assert set(seen) == {(None, None)}, "one that goes by numbers needs no look either"


def test_hooks_are_gone_when_it_stands(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    learner = (
        classifier(tmp_path)
        .num_epochs(2)
        .break_on(NonFinite(activations=True), DeadUnits(0.99), EveryNSteps(3))
        .build(model, adam(model), None, batches())
    )
    run_through(learner, lambda learner: assert_no_hooks(learner.model))
    assert_no_hooks(model)


def assert_no_hooks(model):
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


# Where there is no way back ----------------------------------------------------------------------------


def test_without_a_keyframe_it_stops_as_soon_as_it_knows_and_says_so(tmp_path):
    learner = learner_with(
        tmp_path, GradNorm(above=1e-9), epochs=50, configure=lambda b: b.keyframes(memory=1)
    )
    with pytest.raises(Paused, match="noticed only after step"):
        learner.fit()
    assert learner.position.step >= 1
    assert len(learner.history["train", "Loss"]) == learner.position.iteration


def test_a_step_that_fails_while_it_is_looked_at_is_told_of(tmp_path):
    calls = []

    def fragile(model, batch):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("no second time")
        x, y = batch
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    model = net(seed=1)
    builder = classifier(tmp_path).break_on(AtStep(3))
    builder._settings.loss = None
    learner = builder.train_step(fragile).build(model, adam(model), None, batches())
    with pytest.raises(Paused, match="no second time"):
        learner.fit()
    assert learner.position.step == 2 and learner.status == "paused"


# Mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(NonFinite, r"is a class; give an instance: NonFinite\(\)"), (3, r"break_on\(3\): give a condition")],
)
def test_the_builder_says_what_is_no_condition(wrong, message, tmp_path):
    import re

    model = net()
    (mistake,) = mistakes_of(classifier(tmp_path).break_on(wrong), model, adam(model))
    assert re.search(message, mistake)


def test_two_learners_of_one_builder_have_breakpoints_of_their_own(tmp_path):
    model = net(seed=1)
    builder = classifier(tmp_path).break_on(LossSpike(warmup=2))
    one, other = (builder.build(model, adam(model), None, batches()) for _ in range(2))
    one.step(3)
    assert len(one.breakpoints[1].condition._seen) == 3 and not other.breakpoints[1].condition._seen

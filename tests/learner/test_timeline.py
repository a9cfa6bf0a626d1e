"""Keyframes: where they are taken, what they may cost, and how one goes back over them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from exactness import Setup, differences, everything

from notebook_learner import LearnerBuilder, Position, State, StateError
from notebook_learner.state.timeline import MOST, Timeline


def state(iteration: int, size: int = 0) -> State:
    return State(Position(1, "train", iteration, iteration), {"x": torch.zeros(size, dtype=torch.uint8)})


def places(timeline: Timeline) -> list[int]:
    return [frame.position.step for frame in timeline.keyframes]


def test_the_nearest_keyframe_is_the_last_one_at_or_before() -> None:
    timeline = Timeline(budget=1000)
    for step in (0, 5, 9):
        timeline.add(state(step))
    nearest = [timeline.nearest(Position(1, "train", step)) for step in (0, 4, 5, 100)]
    assert [frame.position.step if frame else None for frame in nearest] == [0, 0, 5, 9]


def test_before_the_first_there_is_none() -> None:
    timeline = Timeline(budget=1000)
    timeline.add(state(5))
    assert timeline.nearest(Position(1, "train", 4)) is None


def test_one_at_the_same_place_takes_the_place() -> None:
    timeline = Timeline(budget=1000)
    first, second = state(5), state(5)
    timeline.add(first)
    timeline.add(second)
    assert timeline.keyframes == [second]


def test_a_future_that_was_taken_back_is_forgotten() -> None:
    timeline = Timeline(budget=1000)
    for step in (0, 5, 9):
        timeline.add(state(step))
    timeline.forget_after(Position(1, "train", 5))
    assert places(timeline) == [0, 5]


def test_a_full_timeline_looks_at_no_position_but_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline, compared = Timeline(budget=1000), []
    for step in range(MOST):
        timeline.add(state(step))
    less = Position.__lt__
    monkeypatch.setattr(Position, "__lt__", lambda one, other: compared.append(one) or less(one, other))
    timeline.add(state(MOST))
    assert len(compared) == 1
    timeline.add(state(MOST - 2))
    assert places(timeline)[-2:] == [MOST - 3, MOST - 2]


def test_memory_stays_within_the_budget_and_the_latest_stay() -> None:
    timeline = Timeline(budget=1000)
    for step in range(100):
        timeline.add(state(step, size=50))
        assert timeline.nbytes <= 1000
    assert places(timeline)[-8:] == list(range(92, 100))
    assert places(timeline)[0] == 0


@pytest.mark.parametrize("most", [12, 20, 50])
def test_older_keyframes_are_thinned_evenly_up_to_the_recent_ones(most: int) -> None:
    timeline = Timeline(budget=50 * most)
    for step in range(20 * most):
        timeline.add(state(step, size=50))
        if len(timeline.keyframes) == most:
            older = places(timeline)[:-7]  # the last one of these is the first of eight recent ones
            fair = (older[-1] - older[0]) / (len(older) - 1)
            assert older[0] == 0 and max(b - a for a, b in pairwise(older)) <= 2 * fair


def test_the_number_is_bounded_too() -> None:
    timeline = Timeline(budget=1 << 40)
    for step in range(MOST + 50):
        timeline.add(state(step))
    assert len(timeline.keyframes) == MOST


def test_a_state_larger_than_the_budget_is_not_kept() -> None:
    timeline = Timeline(budget=100)
    timeline.add(state(0, size=50))
    timeline.add(state(1, size=101))
    assert timeline.keyframes == []
    assert timeline.too_large == 101


def test_the_default_budget_is_a_quarter_of_the_free_memory() -> None:
    import psutil

    timeline = Timeline()
    timeline.add(state(0))
    assert timeline.budget is not None
    assert 0 < timeline.budget <= 0.3 * psutil.virtual_memory().total


@pytest.mark.parametrize("every", [1, 3])
def test_asked_for_by_count_they_lie_at_just_those_steps(every: int, tmp_path: Path) -> None:
    learner = Setup().learner(tmp_path)
    learner._replica.timeline.every = every
    learner.fit()
    training = [
        frame.position.iteration
        for frame in learner._replica.timeline.keyframes
        if frame.position.split == "train"
    ]
    assert set(range(0, 14, every)) <= set(training)


def test_keyframes_by_count_reach_the_loop_through_the_builder(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    learner = (
        LearnerBuilder(tmp_path)
        .loss(torch.nn.functional.mse_loss)
        .renderer("silent")
        .keyframes(every=2)
        .build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    )
    learner.fit([(torch.ones(3, 2), torch.ones(3, 1))] * 6)
    report = learner.rewind(to=(1, 5))
    assert report.replayed == 1
    assert report.exact


def test_every_epoch_and_every_step_call_leaves_one(tmp_path: Path) -> None:
    learner = Setup().learner(tmp_path)
    learner.step(2)
    learner.step(1)
    learner.step_epoch()
    learner.step(1)
    frames = [frame.position.key[:3] for frame in learner._replica.timeline.keyframes]
    assert frames == [(1, 0, 0), (1, 0, 2), (1, 0, 3), (2, 0, 0)]


@pytest.mark.parametrize("target", [(1, 0), (1, 4), (1, "valid", 2), (2, 3)])
def test_rewinding_and_going_on_gives_the_same_bits(target: tuple[int, int], tmp_path: Path) -> None:
    learner = Setup(window=2, ema=True, scheduler="cycle").learner(tmp_path)
    learner.fit()
    end = everything(learner)
    report = learner.rewind(to=target)
    assert report.exact
    assert learner.position.key == report.position.key
    learner.fit()
    assert list(differences(everything(learner), end)) == []


def test_what_was_changed_while_paused_shows_as_drift(tmp_path: Path) -> None:
    learner = Setup().learner(tmp_path)
    learner.step(4)
    learner.step(2)
    learner._replica.timeline.keyframes.pop()  # so that the way back leads over the change
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.5
    learner._replica.timeline.keyframes = learner._replica.timeline.keyframes[:1]
    learner.step(3)
    with torch.no_grad():
        learner.model[0].weight.add_(1.0)
    learner._replica.timeline.keyframes = learner._replica.timeline.keyframes[:1]
    learner.step(2)
    learner._replica.timeline.keyframes = learner._replica.timeline.keyframes[:1]
    report = learner.rewind(1)
    assert not report.exact
    assert report.drift > 0


def test_a_place_before_every_keyframe_is_refused_by_name(tmp_path: Path) -> None:
    learner = Setup().learner(tmp_path)
    learner.step(3)
    learner.step(3)
    learner._replica.timeline.keyframes = learner._replica.timeline.keyframes[-1:]
    with pytest.raises(StateError, match="no keyframe and no checkpoint at or before epoch 1, train, step 1"):
        learner.rewind(to=(1, 1))
    assert learner.position.step == 6


def test_memory_that_keyframes_share_counts_once() -> None:
    timeline, block = Timeline(budget=10_000), torch.zeros(1000, dtype=torch.uint8)
    for step in range(1, 20):
        timeline.add(State(Position(1, "train", step, step), {"x": block[:step], "own": torch.zeros(10)}))
    assert timeline.nbytes == 1000 + 19 * 40
    timeline.forget_after(Position(1, "train", 9))
    assert timeline.nbytes == 1000 + 9 * 40
    timeline.start_over(state(3, size=7))
    assert timeline.nbytes == 7


def test_a_metric_that_keeps_scores_leaves_room_for_keyframes(tmp_path: Path) -> None:
    from notebook_learner.metric import AUROC

    x, y = torch.randn(64, 4), torch.randint(0, 50, (64,))
    net = torch.nn.Linear(4, 50)
    builder = (
        LearnerBuilder(tmp_path).num_epochs(1).renderer("silent").loss(torch.nn.functional.cross_entropy)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    learner = builder.metrics(AUROC()).build(net, optimizer, None, [(x, y)] * 80)
    for _ in range(60):
        learner.step(1)
    timeline = learner._replica.timeline
    scores = 60 * 64 * (50 * 4 + 8)
    assert len(timeline.keyframes) > 50
    assert timeline.nbytes < 3 * scores  # thirty times as much, had each its own
    weights = net.weight.detach().clone()
    learner.rewind(40)
    learner.step(40)
    assert torch.equal(net.weight, weights)

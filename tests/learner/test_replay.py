"""Going back again and again: the first way back leaves keyframes, and people see how far it came."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import Setup, differences, everything, logs
from rich.console import Console
from torch import nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Loss
from notebook_learner.renderer.plain import PlainRenderer
from notebook_learner.renderer.terminal import TerminalRenderer
from notebook_learner.run import replay
from notebook_learner.run.replay import stops
from notebook_learner.widget.board import Board

STEPS = 200


def long_run(directory: Path, steps: int = STEPS, renderer: Any = "silent") -> Learner:
    model = nn.Linear(2, 1)
    learner = (
        LearnerBuilder(directory)
        .loss(nn.functional.mse_loss)
        .metrics(Loss())
        .renderer(renderer)
        .num_epochs(1)
        .build(
            model,
            torch.optim.Adam(model.parameters(), lr=1e-3),
            None,
            [(torch.ones(3, 2), torch.ones(3, 1))] * (2 * STEPS),
        )
    )
    learner.step(steps)
    return learner


def test_one_step_back_again_and_again_replays_at_most_a_tenth_of_the_first(tmp_path: Path) -> None:
    learner = long_run(tmp_path)
    replayed = [learner.rewind(1).replayed for _ in range(50)]
    assert replayed[0] == STEPS - 1
    assert max(replayed[1:]) <= replayed[0] / 10
    assert sum(replayed[1:]) <= replayed[0]


def test_all_the_way_back_step_by_step_each_way_is_a_tenth_of_the_first_at_most(tmp_path: Path) -> None:
    learner = long_run(tmp_path)
    replayed = [learner.rewind(to=step).replayed for step in range(STEPS - 1, -1, -3)]
    assert max(replayed[1:]) <= replayed[0] / 10


def test_with_room_for_few_keyframes_the_way_back_stays_short_and_reaches_as_far(tmp_path: Path) -> None:
    learner = long_run(tmp_path)
    timeline = learner._replica.timeline
    timeline.budget = 6 * learner.capture().nbytes
    replayed = [learner.rewind(1).replayed for _ in range(100)]
    assert sum(replayed[1:]) <= 5 * replayed[0]
    assert timeline.nbytes <= timeline.budget
    assert learner.rewind(to=0).replayed == 0


def test_where_only_one_keyframe_fits_it_is_the_one_that_reaches_back(tmp_path: Path) -> None:
    learner = long_run(tmp_path, steps=20)
    timeline = learner._replica.timeline
    timeline.budget = learner.capture().nbytes
    learner.rewind(1)
    assert [frame.position.step for frame in timeline.keyframes] == [0]


@pytest.mark.parametrize("setup", [Setup(window=2, ema=True, scheduler="cycle"), Setup(seed=None)])
def test_step_by_step_back_and_on_again_gives_the_same_bits(setup: Setup, tmp_path: Path) -> None:
    straight = setup.learner(tmp_path / "straight")
    straight.fit()
    learner = setup.learner(tmp_path / "back")
    learner.fit()
    for _ in range(17):  # over a validation and the end of an epoch
        assert learner.rewind(1).exact
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    assert logs(tmp_path / "back") == logs(tmp_path / "straight")


def test_keyframes_lie_closer_together_towards_the_end() -> None:
    places = stops(10_000, room=64)
    assert places[:5] == [1, 2, 4, 8, 16]
    gaps = [after - before for before, after in zip(places, [*places[1:], 10_000], strict=True)]
    assert gaps[:10] == sorted(gaps[:10])
    assert max(gaps) <= 10_000 / 16 + 1
    assert len(places) < 32


@pytest.mark.parametrize("room", range(12))
def test_no_more_keyframes_than_there_is_room_for(room: int) -> None:
    for length in (0, 1, 2, 7, 100, 5000):
        assert len(stops(length, room)) <= room


# What people see meanwhile ---------------------------------------------------------------------------


def plain(screen: io.StringIO) -> Any:
    return PlainRenderer(screen)


def terminal(screen: io.StringIO) -> Any:
    return TerminalRenderer(
        Console(file=screen, force_terminal=True, width=100, height=20, _environ={"TERM": "xterm"})
    )


class OnPanel:
    """What a panel would say, told by its board."""

    def __init__(self, screen: io.StringIO) -> None:
        self.board, self.screen = Board(), screen

    def handle(self, event: Any) -> None:
        self.board.handle(event)
        print(self.board.moving()["reason"], file=self.screen)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second is over at once."""
    monkeypatch.setattr(replay, "PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("renderer", [plain, terminal, OnPanel])
def test_a_long_way_back_shows_how_far_it_came(
    renderer: Callable[[io.StringIO], Any], tmp_path: Path
) -> None:
    screen = io.StringIO()
    learner = long_run(tmp_path, steps=30, renderer=renderer(screen))
    before = len(screen.getvalue())
    learner.rewind(1)
    told = screen.getvalue()[before:]
    assert "on the way back to epoch 1, train, step 29: step 0 of 29 (0 %)" in told


@pytest.mark.parametrize("renderer", [plain, terminal, OnPanel])
def test_a_short_way_back_shows_nothing_of_itself(
    renderer: Callable[[io.StringIO], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PATIENCE", 1e9)
    screen = io.StringIO()
    learner = long_run(tmp_path, steps=30, renderer=renderer(screen))
    learner.rewind(1)
    assert "on the way back" not in screen.getvalue()


@pytest.mark.usefixtures("impatient")
def test_afterwards_a_panel_says_nothing_of_it(tmp_path: Path) -> None:
    panel = OnPanel(io.StringIO())
    learner = long_run(tmp_path, steps=30, renderer=panel)
    learner.rewind(1)
    assert panel.board.tally.tour is None
    assert "on the way back" not in panel.board.moving()["reason"]


@pytest.mark.usefixtures("impatient")
def test_a_way_back_that_fails_is_not_shown_any_more(tmp_path: Path) -> None:
    panel = OnPanel(io.StringIO())
    learner = long_run(tmp_path, steps=30, renderer=panel)

    def refuse(*given: Any) -> None:
        raise RuntimeError("no forward today")

    hook = learner.model.register_forward_pre_hook(refuse)
    with pytest.raises(RuntimeError, match="no forward today"):
        learner.rewind(1)
    hook.remove()
    assert panel.board.tally.tour is None


@pytest.mark.usefixtures("impatient")
def test_a_display_that_trains_on_stays_up_after_a_way_back() -> None:
    screen = io.StringIO()
    renderer = terminal(screen)
    from notebook_learner.event import SetProgress, StatusChanged

    renderer.handle(StatusChanged("running", 1, "train", 0, None))
    renderer.handle(SetProgress("on the way back to there", 1, 9, unit="step"))
    renderer.handle(SetProgress("on the way back to there", 9, 9, over=True, unit="step"))
    assert renderer._live is not None
    renderer.close()


def test_a_program_that_collects_outputs_gets_a_line_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "PATIENCE", 0.0)
    learner = long_run(tmp_path, steps=30, renderer="panel")  # no page here: it writes lines
    capsys.readouterr()
    learner.rewind(1)
    assert "on the way back to epoch 1, train, step 29" in capsys.readouterr().out

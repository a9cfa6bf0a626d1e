"""What was not measured is computed afterwards: the steps are taken again, aside, and compared."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from branching_support import STEPS, Shown, X, Y, learner_in, step_on, weights
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.errors import StateError
from notebook_learner.learner import asking_elsewhere
from notebook_learner.learner.asking_elsewhere import ask_side_by_side
from notebook_learner.metric import RMSE, Loss, MeanAbsoluteError

MAE = MeanAbsoluteError().name


def measuring(directory: Path) -> Any:
    """The run of `learner_in`, which measures the error, too."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(4).renderer("silent")
    builder.with_file_checkpointer().metrics(Loss(), MeanAbsoluteError())
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    return builder.build(model, Adam(model.parameters(), lr=0.01), None, loader, [(X, Y)])


def trained(learner: Any) -> Any:
    step_on(learner, 5)
    learner.lr = 0.05
    learner.fit()
    return learner


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_metric_has_the_bits_of_the_run_that_measured_it(split: str, tmp_path: Path) -> None:
    other = trained(measuring(tmp_path / "measured"))
    learner = trained(learner_in(tmp_path / "run"))
    asked, measured = learner.ask(MeanAbsoluteError(), split=split), other.artifacts.series(MAE, split)
    for name in ("value", "weight", "epoch", "step", "iteration"):
        assert np.array_equal(getattr(asked, name), getattr(measured, name)), name


def test_the_learner_stands_where_it_stood_to_the_bit(tmp_path: Path) -> None:
    straight = learner_in(tmp_path / "straight")
    straight.fit()
    learner = learner_in(tmp_path / "run")
    step_on(learner, 19)
    before, random = learner.position, torch.get_rng_state()
    learner.ask(MeanAbsoluteError(), steps=(3, 12))
    learner.ask(lambda learner: learner.output.loss, every=3)
    assert learner.position == before and learner.status == "paused"
    assert torch.equal(torch.get_rng_state(), random)
    learner.fit()
    assert torch.equal(weights(straight), weights(learner))
    assert learner.history["train", "Loss"].tolist() == straight.history["train", "Loss"].tolist()


def test_an_answer_stays_with_the_run_under_its_name_and_grows(tmp_path: Path) -> None:
    other = trained(measuring(tmp_path / "measured"))
    learner = trained(learner_in(tmp_path / "run"))
    learner.ask(MeanAbsoluteError(), steps=(1, STEPS))
    first = Artifacts(tmp_path / "run").asked
    assert len(first.values(MAE, "train")) == STEPS
    learner.ask(MeanAbsoluteError())
    learner.ask(RMSE())
    asked = Artifacts(tmp_path / "run").asked
    assert asked.metrics("train") == (MAE, "RMSE")
    assert asked.epochs(MAE, "valid").tolist() == other.history.epochs(MAE, "valid").tolist()
    assert Artifacts(tmp_path / "run").metrics("train") == ("Loss",)  # what the run itself measured


def test_an_answer_is_a_curve_of_the_run_that_is_marked_as_asked(tmp_path: Path) -> None:
    measured = trained(measuring(tmp_path / "measured")).artifacts.series(MAE)
    learner = trained(learner_in(tmp_path / "run"))
    assert learner.ask(MeanAbsoluteError(), steps=(3, 12)).asked
    run = Artifacts(tmp_path / "run")
    part = run.series(MAE)
    assert part.asked and "asked" in repr(part) and not run.series("Loss").asked and not measured.asked
    assert part.value.tolist() == measured.value[:12].tolist() and part.time[0] > 0
    figure = run.plot()
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    assert any(f"{MAE} (asked)" in title for title in titles) and any("Loss" in title for title in titles)
    lines = next(axes for axes, title in zip(figure.axes, titles, strict=True) if "asked" in title).lines
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in lines]
    assert part.value.tolist() in [each[np.isfinite(each)].tolist() for each in drawn]
    with pytest.raises(KeyError, match="no metric 'Other'"):
        run.series("Other")


def test_a_function_is_asked_at_the_moments_of_the_past(tmp_path: Path) -> None:
    learner, norms = learner_in(tmp_path / "run"), {}
    for number in range(1, 21):
        step_on(learner)
        norms[number] = float(learner.model[0].weight.detach().norm())
    answer = learner.ask(lambda learner: learner.model[0].weight.norm(), steps=(4, 20), every=4)
    assert answer.iteration.tolist() == [4, 8, 12, 16, 20]
    assert answer.value.tolist() == [norms[number] for number in (4, 8, 12, 16, 20)]
    assert answer.exact and "training step" in repr(answer)
    outputs = learner.ask(lambda learner: learner.model(X[:3]), steps=7)
    assert len(outputs) == 1 and outputs.value[0].shape == (3, 1)


def test_a_new_process_asks_a_finished_run(tmp_path: Path) -> None:
    other = trained(measuring(tmp_path / "measured"))
    trained(learner_in(tmp_path / "run")).artifacts  # noqa: B018  # waits for the files
    learner = learner_in(tmp_path / "run", plain=True)
    asked = learner.ask(MeanAbsoluteError(), steps=(9, 20))
    assert asked.value.tolist() == other.artifacts.series(MAE).value.tolist()[8:20]
    assert learner.status == "finished"


def test_steps_that_are_others_now_are_told(tmp_path: Path) -> None:
    trained(learner_in(tmp_path / "run")).artifacts  # noqa: B018
    shown = Shown()
    learner = learner_in(tmp_path / "run", plain=True, shown=shown, data=TensorDataset(X + 1, Y))
    answer = learner.ask(lambda learner: learner.output.loss, steps=(9, 12))
    assert not answer.exact
    assert "ask() took other steps than the run" in shown.told[-1] and "data.train" in shown.told[-1]


class Counted(nn.Module):
    """Has a buffer on which no value depends, and which a number outside of the run moves."""

    outside = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("moved", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.moved += Counted.outside
        return self.layer(x)


def counted_in(directory: Path) -> Any:
    torch.manual_seed(1)
    model = Counted()
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(3).renderer("silent")
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    return builder.with_file_checkpointer().build(model, Adam(model.parameters(), lr=0.01), None, loader)


@pytest.mark.parametrize(
    ("outside", "steps", "differs"),
    [(1.0, (1, 24), None), (2.0, (1, 7), None), (2.0, (9, 20), "moved differs after epoch 3, train, step 0")],
)
def test_the_steps_are_verified_at_each_checkpoint_on_their_way(
    outside: float, steps: Any, differs: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = counted_in(tmp_path / "run")
    learner.fit()
    learner.artifacts  # noqa: B018  # waits for the files
    monkeypatch.setattr(Counted, "outside", outside)
    answer = learner.ask(lambda learner: learner.output.loss, steps=steps)
    assert answer.exact == (differs is None)
    if differs is not None:
        assert str(answer.differs).startswith(differs) and "checkpoint 2 has another one" in str(
            answer.differs
        )


def test_a_damaged_checkpoint_on_the_way_is_told_and_the_answer_is_given(tmp_path: Path) -> None:
    shown = Shown()
    learner = learner_in(tmp_path / "run", shown=shown)
    learner.fit()
    losses = learner.artifacts.series("Loss").value
    path = tmp_path / "run" / "checkpoint" / "optim-3.h5"
    data = bytearray(path.read_bytes())
    data[-200:] = bytes(200)
    path.write_bytes(data)
    answer = learner.ask(lambda learner: learner.output.loss, steps=(9, 28))
    assert answer.exact and answer.value.tolist() == losses[8:28].tolist()
    assert any("ask() compares nothing with checkpoint 3" in text for text in shown.told)


@pytest.mark.parametrize(
    ("what", "steps", "told"),
    [
        (3, None, r"ask\(3\): give a metric"),
        (lambda: 0, None, "give a metric"),
        (MeanAbsoluteError(), (0, 5), r"ask\(steps=\(0, 5\)\): give training steps from 1 to 6"),
        (MeanAbsoluteError(), (5, 7), "from 1 to 6"),
        (MeanAbsoluteError(), (5, 2), "from 1 to 6"),
    ],
)
def test_what_cannot_be_asked_is_named(what: Any, steps: Any, told: str, tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 6)
    with pytest.raises((TypeError, ValueError), match=told):
        learner.ask(what, steps=steps)
    assert learner.position.iteration == 6


def test_an_error_in_the_function_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    before = weights(learner)
    with pytest.raises(ZeroDivisionError):
        learner.ask(lambda learner: 1 / 0, steps=(3, 9))
    assert torch.equal(weights(learner), before) and learner.position.iteration == 12
    step_on(learner, 1)


# In several processes ------------------------------------------------------------------------------------


@pytest.fixture
def parts_asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The stretches into which each question was divided."""
    found: list[list[Any]] = []

    def seen(learner: Any, ask: Any, parts: Any) -> list[Any]:
        found.append([*parts])
        return ask_side_by_side(learner, ask, parts)

    monkeypatch.setattr(asking_elsewhere, "ask_side_by_side", seen)
    return found


@pytest.mark.parametrize("split", ["train", "valid"])
def test_processes_side_by_side_measure_the_bits_of_the_run_that_measured_it(
    split: str, parts_asked: list[list[Any]], tmp_path: Path
) -> None:
    other = trained(measuring(tmp_path / "measured"))
    learner = trained(learner_in(tmp_path / "run"))
    asked, measured = (
        learner.ask(MeanAbsoluteError(), split=split, processes=3),
        other.artifacts.series(MAE, split),
    )
    for name in ("value", "weight", "epoch", "step", "iteration"):
        assert np.array_equal(getattr(asked, name), getattr(measured, name)), name
    [parts] = parts_asked
    assert 1 < len(parts) <= 3 and parts[0].first == 1 and parts[-1].last == 4 * STEPS
    assert all(one.last + 1 == two.first and one.last % STEPS == 0 for one, two in pairwise(parts))
    assert learner.artifacts.asked.epochs(MAE, split).tolist() == other.artifacts.epochs(MAE, split).tolist()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_function_gives_the_same_in_several_processes(
    resumed: bool, parts_asked: list[list[Any]], tmp_path: Path
) -> None:
    learner = trained(learner_in(tmp_path / "run"))
    if resumed:
        learner.artifacts  # noqa: B018  (waits for the files)
        learner = learner_in(tmp_path / "run", plain=True)
    model, before = learner.model, weights(learner)

    def norm_and_loss(
        learner: Any,
    ) -> tuple[float, float]:  # one by the argument, one by a name of the notebook
        return model[0].weight.norm().item(), learner.output.loss.item()

    alone = learner.ask(norm_and_loss, steps=(3, 30), every=4)
    together = learner.ask(norm_and_loss, steps=(3, 30), every=4, processes=2)
    assert len(parts_asked) == 1 and len(parts_asked[0]) == 2
    assert together.value == alone.value and together.exact and alone.exact
    for name in ("iteration", "epoch", "step"):
        assert np.array_equal(getattr(together, name), getattr(alone, name))
    assert torch.equal(weights(learner), before)


def test_a_difference_in_another_process_is_told(tmp_path: Path) -> None:
    trained(learner_in(tmp_path / "run")).artifacts  # noqa: B018
    shown = Shown()
    learner = learner_in(tmp_path / "run", plain=True, shown=shown, data=TensorDataset(X + 1, Y))
    answer = learner.ask(last_loss, steps=(1, 2 * STEPS), processes=2)
    assert not answer.exact and "epoch 1, train, step 1" in str(answer.differs)
    assert "data.train" in shown.told[-1]


def last_loss(learner: Any) -> float:
    return float(learner.output.loss.item())


def test_an_error_in_another_process_is_shown_with_its_traceback(tmp_path: Path) -> None:
    learner = trained(learner_in(tmp_path / "run"))

    def failing(learner: Any) -> float:
        return 1 / (learner.position.iteration - 2)

    with pytest.raises(StateError, match="ZeroDivisionError: division by zero"):
        learner.ask(failing, processes=2)
    assert learner.ask(last_loss, steps=1).exact


def test_what_cannot_be_asked_in_other_processes_is_named(tmp_path: Path) -> None:
    learner = trained(learner_in(tmp_path / "run"))
    lock = Lock()
    with pytest.raises(StateError, match="what is asked cannot be sent"):
        learner.ask(lambda learner: lock, processes=2)
    with pytest.raises(ValueError, match="processes"):
        learner.ask(last_loss, processes=0)


def test_after_an_edit_of_the_code_the_steps_are_taken_here_and_a_line_says_so(
    parts_asked: list[list[Any]], tmp_path: Path
) -> None:
    shown = Shown()
    learner = learner_in(tmp_path / "run", shown=shown)
    step_on(learner, STEPS + 2)
    learner.loss = F.l1_loss
    learner.fit()
    assert learner.ask(last_loss, processes=2).exact and parts_asked == []
    assert "takes the steps in this process: its code was changed by hand" in shown.told[-1]

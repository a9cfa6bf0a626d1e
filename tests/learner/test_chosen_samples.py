"""`.samples(loader, n)`: what the model says of the same samples after each epoch, beside the training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exactness import Setup, differences, disturb, everything, logs, straight
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import ConfigurationError, Learner, LearnerBuilder, Paused
from notebook_learner.evaluation import chosen_samples
from notebook_learner.event import Notice, SampleRow, Sheet
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import AccumulatedText

SETUPS = {
    "plain": {},
    "no seed": {"seed": None},
    "workers": {"workers": 2},
    "moving average, accumulation": {"ema": True, "window": 3},
    "half precision, schedule": {"precision": "bf16", "scheduler": "cycle"},
    "own generator, every metric": {"own_generator": True, "catalogue": True},
    "a loss that counts its calls": {"carries": True},
    "files": {"files": True},
}


class Tape(InMemoryMetricLogger):
    @property
    def sheets(self) -> list[Sheet]:
        return [event for event in self.events if isinstance(event, Sheet) and event.name == "Samples"]

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


X = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3


def loader(shuffle: bool = False, size: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=size, shuffle=shuffle)


def classifier() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def builder(directory: str = "nowhere") -> tuple[LearnerBuilder, Tape]:
    tape = Tape()
    made = LearnerBuilder(directory).loss(F.cross_entropy).metric_logger(tape).num_epochs(3)
    return made.with_application_logger(False).renderer("silent"), tape


def built(
    made: LearnerBuilder, train: Any = None, valid: Any = None, model: nn.Module | None = None
) -> Learner:
    model = classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return made.build(model, optimizer, None, loader(True) if train is None else train, valid)


def rows(sheet: Sheet) -> tuple[SampleRow, ...]:
    assert isinstance(sheet.content, tuple)
    return sheet.content


# The training does not notice ------------------------------------------------------------------------


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_a_training_with_samples_is_the_same_to_the_bit(setup, tmp_path):
    state, written = straight(Setup(**setup), tmp_path / "without")
    shown, written_too = straight(Setup(samples=True, **setup), tmp_path / "with")
    assert list(differences(state, shown)) == []
    assert written == written_too


class Counting(nn.Module):
    """Each forward pass changes the next ones, in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(64, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.layer(x.flatten(1)) * (1 + self.calls / 100)


@pytest.mark.parametrize("taken_back", [True, False])
def test_what_a_forward_pass_changes_is_taken_back(taken_back, monkeypatch):
    @contextmanager
    def nothing_taken_back(replica: Any, cursor: Any, what: str) -> Any:
        yield

    if not taken_back:  # the comparison would see it
        monkeypatch.setattr(chosen_samples, "beside", nothing_taken_back)
    states = []
    for shown in (False, True):
        made, _ = builder()
        torch.manual_seed(2)
        learner = built(made.samples(loader(), n=2) if shown else made, valid=loader(), model=Counting())
        learner.fit()
        states.append(everything(learner))
    assert (list(differences(*states)) == []) is taken_back


@settings(max_examples=12, deadline=None)
@given(stops=st.lists(st.integers(1, 7), min_size=1, max_size=4), back=st.integers(0, 5))
def test_steps_pauses_and_rewinds_with_samples_end_at_the_same_bits(stops, back, tmp_path_factory):
    setup = Setup(samples=True)
    state, _ = straight(Setup(), tmp_path_factory.mktemp("without"))
    learner = setup.learner(tmp_path_factory.mktemp("with"))
    for n in stops:
        learner.step(n)
        disturb()
    if back:
        learner.rewind(min(back, sum(stops)))
    learner.fit()
    assert list(differences(state, everything(learner))) == []


def test_a_run_with_samples_resumes_exactly(tmp_path):
    setup = Setup(samples=True, files=True)
    state, written = straight(setup, tmp_path / "straight")
    learner = setup.learner(tmp_path / "resumed")
    learner.step(12)
    learner.save()
    del learner
    again = setup.learner(tmp_path / "resumed", checkpoint="latest")
    again.fit()
    assert list(differences(state, everything(again))) == []
    assert written == logs(tmp_path / "resumed")


def test_a_condition_of_run_until_is_asked_as_often_as_without_samples():
    asked: dict[bool, int] = {}
    for shown in (False, True):
        made, _ = builder()
        learner = built(made.samples(loader(), n=2) if shown else made)
        calls: list[Any] = []
        learner.run_until(lambda it, calls=calls: calls.append(it.position) or it.position.epoch == 3)
        asked[shown] = len(calls)
    assert asked[True] == asked[False] == 12


# What is shown ---------------------------------------------------------------------------------------


def test_rows_hold_what_torch_says_of_the_first_samples():
    made, tape = builder()
    learner = built(made.samples(loader(size=4), n=6, labels=["cat", "dog", "fox"]))
    learner.fit()
    model = learner.model.eval()
    with torch.no_grad():
        scores = model(X[:6])
    losses = F.cross_entropy(scores, Y[:6], reduction="none")
    names = np.array(["cat", "dog", "fox"])
    shown = rows(tape.sheets[-1])
    assert [row.target for row in shown] == names[Y[:6]].tolist()
    assert [row.prediction for row in shown] == names[scores.argmax(1)].tolist()
    assert [row.right for row in shown] == (scores.argmax(1) == Y[:6]).tolist()
    assert [row.loss for row in shown] == pytest.approx(losses.tolist(), rel=1e-6)
    assert all(isinstance(row.given, bytes) and row.given.startswith(b"\x89PNG") for row in shown)
    assert len({row.given for row in shown}) == 6


def test_samples_are_shown_after_each_epoch_and_at_a_pause_but_not_after_a_step_by_hand():
    made, tape = builder()
    learner = built(made.samples(loader(), n=2))
    learner.step(2)
    assert tape.sheets == []
    learner.step_epoch()
    assert [(each.epoch, each.step) for each in tape.sheets] == [(2, 0)]
    learner.breakpoints.add(lambda moment: moment.iteration == 7)
    with pytest.raises(Paused):
        learner.fit()
    assert [(each.epoch, each.step) for each in tape.sheets] == [(2, 0), (2, 1)]
    learner.breakpoints.clear()
    learner.fit()
    assert [each.epoch for each in tape.sheets] == [2, 2, 3, 3]


def test_the_same_samples_are_shown_each_time_also_of_a_shuffled_loader():
    made, tape = builder()
    built(made.samples(loader(shuffle=True), n=5)).fit()
    assert len({tuple(row.given for row in rows(sheet)) for sheet in tape.sheets}) == 1
    assert len({tuple(row.loss for row in rows(sheet)) for sheet in tape.sheets}) == 3


def test_going_back_shows_what_was_shown_there():
    made, tape = builder()
    learner = built(made.samples(loader(), n=2))
    learner.fit()
    learner.rewind(to=(3, 1))
    assert learner.history.sheets[-1] == tape.sheets[1]
    learner.rewind(to=(1, 2))
    assert learner.history.sheets == ()


def test_loader_with_fewer_samples_shows_those():
    made, tape = builder()
    built(made.samples([(X[:3], Y[:3])], n=8)).fit()
    assert len(rows(tape.sheets[-1])) == 3


def test_a_dataset_is_taken_with_a_batch_size():
    made, tape = builder()
    built(made.with_batch_size(4).samples(TensorDataset(X, Y), n=3), TensorDataset(X, Y)).fit()
    assert len(rows(tape.sheets[-1])) == 3


def test_a_fork_shows_samples_too(tmp_path):
    made, _ = builder(str(tmp_path / "one"))
    learner = built(made.samples(loader(), n=2))
    learner.step(5)
    other = learner.fork(tmp_path / "other")
    other.step_epoch()
    assert [sheet.epoch for sheet in other.history.sheets] == [2]


# What cannot be shown --------------------------------------------------------------------------------


def test_an_error_in_the_samples_is_told_once_and_the_training_goes_on():
    made, tape = builder()
    wrong = [(torch.rand(2, 5), torch.zeros(2, dtype=torch.long))]  # five features where the model takes 64
    learner = built(made.samples(wrong, n=2))
    learner.fit()
    assert learner.status == "finished"
    told = [text for text in tape.said if "samples" in text]
    assert len(told) == 1 and "mat1 and mat2" in told[0]


def test_a_training_loader_that_can_be_walked_once_is_told_by_name():
    once = iter([(X[:4], Y[:4])] * 2)
    made, tape = builder()
    learner = built(made.num_epochs(1).samples(once, n=2), once)
    learner.fit()
    assert any("can be walked only once" in text for text in tape.said)
    assert len(learner.history["train", "Loss"]) == 2


def test_an_output_without_predictions_says_what_to_return():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            return F.cross_entropy(self.layer(x.flatten(1)), y)

        valid_step = train_step

    tape = Tape()
    made = LearnerBuilder("nowhere").metric_logger(tape).with_application_logger(False).renderer("silent")
    built(made.samples(loader(), n=2), model=Bare()).fit()
    assert any("ClassificationOutput(loss, output, targets)" in text for text in tape.said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"loader": 3}, "type int"),
        ({"loader": "valid"}, "type str"),
        ({"n": 0}, "whole number from 1 to 64"),
        ({"n": True}, "whole number from 1 to 64"),
        ({"n": 65}, "whole number from 1 to 64"),
        ({"labels": "abc"}, "the name of each class"),
        ({"labels": [1, 2]}, "the name of each class"),
        ({"tokenizer": 7}, "decode(numbers)"),
    ],
)
def test_wrong_arguments_are_refused_at_the_build(arguments, said):
    made, _ = builder()
    with pytest.raises(ConfigurationError, match="samples") as refused:
        built(made.samples(**{"loader": loader(), **arguments}))
    assert said in str(refused.value)


# Metrics' own sheets ---------------------------------------------------------------------------------


class Words(AccumulatedText):
    """Counts batches; `shows` is what its picture is."""

    name = "Words"

    def __init__(self, shows: Any = None) -> None:
        self.shows, self.batches = shows, 0

    def reset(self) -> None:
        self.batches = 0

    def update(self, item: Any) -> None:
        self.batches += 1

    def text(self) -> str:
        return f"{self.batches} batches"

    def picture(self) -> Any:
        if isinstance(self.shows, Exception):
            raise self.shows
        return self.shows() if callable(self.shows) else self.shows


def sheet_of(shows: Any) -> Any:
    tape = Tape()
    made = LearnerBuilder("nowhere").loss(F.cross_entropy).metric_logger(tape).with_application_logger(False)
    learner = built(made.renderer("silent").metrics(Words(shows), valid=False))
    learner.fit()
    assert learner.status == "finished"
    (sheet,) = [event for event in tape.events if isinstance(event, Sheet)]
    assert (sheet.name, sheet.of, sheet.epoch, sheet.step) == ("Words", "train", 1, 5)
    return sheet.content


def a_figure() -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return figure


def test_a_text_of_the_epoch_is_shown_whole():
    assert sheet_of(None) == "5 batches"


def test_a_figure_becomes_a_png_file_and_is_closed():
    import matplotlib.pyplot as plt

    def drawn() -> Any:
        return plt.figure(figsize=(2, 1))

    for shows in (a_figure, drawn):
        assert sheet_of(shows)[:4] == b"\x89PNG"
    assert plt.get_fignums() == []


@pytest.mark.parametrize("shows", [ValueError("no bars"), 7, b"no picture"])
def test_a_picture_that_fails_says_so_in_its_tab_and_the_training_goes_on(shows):
    assert sheet_of(shows).startswith("the picture of Words failed: ")

"""Where a cell says another seed, schedule, batch size, number of epochs or data than the checkpoint: a line
says each, and what holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from torch.utils.data import TensorDataset

from notebook_learner import ConfigurationError, LearnerBuilder
from notebook_learner.event import Notice

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, X.sum(1, keepdim=True))
MORE = '. .resume(settings="given") takes the cell\'s'


class Shown:
    def __init__(self) -> None:
        self.told: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.told.append(event.text)


def learner_in(
    directory: Path,
    *,
    resume: str | None = None,
    data: Any = DATA,
    schedule: Any = lambda optimizer: None,
    seed: int | None = 3,
    epochs: int = 3,
    batch_size: int = 4,
    accumulation: int = 1,
    smoothing: float = 0.1,
) -> tuple[Any, Shown]:
    torch.manual_seed(1)
    model, shown = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 1)), Shown()
    builder = LearnerBuilder(directory).num_epochs(epochs).renderer(shown).metrics().with_file_checkpointer()
    builder.loss(nn.SmoothL1Loss(beta=smoothing)).with_batch_size(batch_size).grads_accumulation(accumulation)
    if seed is not None:
        builder.seed(seed)
    if resume is not None:
        builder.resume(settings=resume)  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    return builder.build(model, optimizer, schedule(optimizer), data), shown


def saved_in_the_second_epoch(directory: Path, **options: Any) -> None:
    learner, _ = learner_in(directory, **options)
    learner.step(11)  # of 8 an epoch
    learner.save()


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()])


# The seed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(3, 4), (3, None), (None, 3)])
def test_the_checkpoints_seed_holds_to_the_bit(first: int | None, second: int | None, tmp_path: Path) -> None:
    straight, _ = learner_in(tmp_path / "straight", seed=first)
    straight.fit()
    saved_in_the_second_epoch(tmp_path / "run", seed=first)
    learner, shown = learner_in(tmp_path / "run", seed=second, resume="checkpoint")
    one, other = (str(each).replace("None", "none") for each in (first, second))
    assert shown.told == [f"seed: the cell says {other}, the checkpoint {one}: kept {one}{MORE}"]
    learner.fit()
    assert torch.equal(weights(learner), weights(straight))


@pytest.mark.parametrize("second", [4, None])
def test_the_checkpoints_seed_holds_for_data_that_comes_with_fit(second: int | None, tmp_path: Path) -> None:
    straight, _ = learner_in(tmp_path / "straight")
    straight.fit()
    saved_in_the_second_epoch(tmp_path / "run")
    learner, shown = learner_in(tmp_path / "run", data=None, seed=second, resume="checkpoint")
    learner.fit(DATA)
    assert torch.equal(weights(learner), weights(straight))
    assert [each for each in shown.told if "seed:" in each] == shown.told[:1]


@pytest.mark.parametrize("with_fit", [False, True])
def test_a_given_seed_counts_from_the_next_epoch_on(with_fit: bool, tmp_path: Path) -> None:
    """This epoch's order is drawn already: with another one, samples would come twice or never."""
    seen: list[Any] = []

    class Looking(TensorDataset):
        def __getitem__(self, at: int) -> Any:
            seen.append(at)
            return super().__getitem__(at)

    def orders(directory: Path, seed: int) -> list[list[int]]:
        seen.clear()
        learner_in(directory, seed=seed, data=Looking(*DATA.tensors))[0].fit()
        return [seen[at : at + 32] for at in range(0, 96, 32)]

    three, four = orders(tmp_path / "three", 3), orders(tmp_path / "four", 4)
    assert three[1] != four[1] and three[2] != four[2]
    saved_in_the_second_epoch(tmp_path / "run", data=Looking(*DATA.tensors))
    data = Looking(*DATA.tensors)
    learner, shown = learner_in(tmp_path / "run", data=None if with_fit else data, seed=4, resume="given")
    assert shown.told == ["seed: the checkpoint says 3, the cell 4: took 4, from the next epoch on"]
    learner.fit(data if with_fit else None)
    assert seen[-52:] == three[1][12:] + four[2]  # behind what the checkpoint brought back of this very list


# Schedules ---------------------------------------------------------------------------------------------


def halved(every: int) -> Any:
    return lambda optimizer: StepLR(optimizer, every, 0.5)


def test_the_checkpoints_options_of_a_schedule_hold(tmp_path: Path) -> None:
    saved_in_the_second_epoch(tmp_path, schedule=halved(1))
    learner, shown = learner_in(tmp_path, schedule=halved(2), resume="checkpoint")
    assert shown.told == [f"schedule.step_size: the cell says 2, the checkpoint 1: kept 1{MORE}"]
    assert learner.scheduler.step_size == 1


def test_given_options_of_a_schedule_are_taken(tmp_path: Path) -> None:
    saved_in_the_second_epoch(tmp_path, schedule=halved(1))
    learner, shown = learner_in(tmp_path, schedule=halved(2), resume="given")
    assert shown.told == ["schedule.step_size: the checkpoint says 1, the cell 2: took 2"]
    assert learner.scheduler.step_size == 2 and learner.scheduler.last_epoch == 1
    learner.fit()
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 * 0.5)


@pytest.mark.parametrize("former", [None, lambda optimizer: CosineAnnealingLR(optimizer, 9)])
def test_another_schedule_is_refused_by_name_and_begins_where_it_is_asked_for(
    former: Any, tmp_path: Path
) -> None:
    saved_in_the_second_epoch(tmp_path, schedule=former or (lambda optimizer: None))
    told = "CosineAnnealingLR" if former else "none"
    with pytest.raises(ConfigurationError, match=f"the cell says StepLR, the checkpoint {told}. Give"):
        learner_in(tmp_path, schedule=halved(1), resume="checkpoint")
    learner, shown = learner_in(tmp_path, schedule=halved(1), resume="given")
    assert (
        f"schedule: the checkpoint says {told}, the cell StepLR: took StepLR, from its beginning"
        in shown.told
    )
    assert learner.optimizer.param_groups[0]["lr"] == 0.1 and learner.position.iteration == 11
    learner.fit()
    assert learner.optimizer.param_groups[0]["lr"] == 0.025  # the ends of two epochs


# What is the program's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["checkpoint", "given"])
def test_what_comes_with_the_program_is_taken_from_it_and_told(whose: str, tmp_path: Path) -> None:
    saved_in_the_second_epoch(tmp_path)
    other = {"epochs": 5, "batch_size": 8, "accumulation": 2, "smoothing": 0.25}
    learner, shown = learner_in(tmp_path, **other, resume=whose)  # type: ignore[arg-type]
    assert sorted(each for each in shown.told if "digest" not in each and not each.startswith("loss:")) == [
        "accumulation: the cell says 2, the checkpoint 1: took 2",
        "batch_size: the cell says 8, the checkpoint 4: took 8",
        "epochs: the cell says 5, the checkpoint 3: took 5",
    ]
    assert learner.num_epochs == 5


def test_other_data_is_told_when_it_comes(tmp_path: Path) -> None:
    saved_in_the_second_epoch(tmp_path)
    other = TensorDataset(X + 1, X.sum(1, keepdim=True))
    _, same = learner_in(tmp_path, data=TensorDataset(*DATA.tensors), resume="checkpoint")
    assert same.told == []
    _, at_once = learner_in(tmp_path, data=other, resume="checkpoint")
    assert len(at_once.told) == 1 and "the train data have the fingerprint" in at_once.told[0]
    learner, later = learner_in(tmp_path, data=None, resume="checkpoint")
    assert later.told == []
    learner.fit(other)
    assert later.told == at_once.told


def test_a_checkpoint_without_a_recipe_compares_what_it_has(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("notebook_learner.recipe.run_recipe.RunRecipe.text", lambda self, wait=False: "")
    saved_in_the_second_epoch(tmp_path)
    monkeypatch.undo()
    learner, shown = learner_in(tmp_path, epochs=5, batch_size=8, resume="checkpoint")
    assert len(shown.told) == 1 and "data are not compared" in shown.told[0]
    assert learner.position.iteration == 11


def test_the_same_program_says_nothing(tmp_path: Path) -> None:
    saved_in_the_second_epoch(tmp_path, schedule=halved(1))
    learner, shown = learner_in(tmp_path, schedule=halved(1), resume="given")
    learner.fit()
    assert shown.told == []

"""Two runs that differ take their steps again, up to the first cause of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from branching_support import STEPS, X, Y
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from notebook_learner import Artifacts, LearnerBuilder

OTHER_X = X.clone()
OTHER_X[7] += 1


class Noisy(Dataset[Any]):
    """Draws from a generator of its own, from one seed or another."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, at: int) -> Any:
        return X[at] + torch.rand(4, generator=self.generator), Y[at]


def weighted(weight: float, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return weight * F.mse_loss(output, target)


def built(directory: Path, *, resumes: bool = True, **options: Any) -> Any:
    given = {"rate": 0.01, "seed": 1, "weights": 1, "act": nn.ReLU, "drop": 0.3, "loss": F.mse_loss}
    given |= {"data": TensorDataset(X, Y), "clip": None, "optimizer": torch.optim.Adam, "valid": X, **options}
    torch.manual_seed(given["weights"])
    model = nn.Sequential(nn.Linear(4, 8), given["act"](), nn.Dropout(given["drop"]), nn.Linear(8, 1))
    builder = LearnerBuilder(directory).loss(given["loss"]).num_epochs(3).renderer("silent")
    builder.with_file_checkpointer().seed(given["seed"])
    if given["clip"]:
        builder.clip_gradients(norm=given["clip"])
    if resumes:
        builder.resume()
    loader = DataLoader(given["data"], batch_size=4, shuffle=True)
    optimizer = given["optimizer"](model.parameters(), lr=given["rate"])
    return builder.build(model, optimizer, given.get("schedule"), loader, [(given["valid"], Y)])


def differing(
    tmp_path: Path, work: Callable[[Any], Any] = lambda learner: learner.fit(), **options: Any
) -> Any:
    """What `diff` finds between a run and one that was built, or trained, in another way."""
    built(tmp_path / "a", resumes=False).fit()
    work(built(tmp_path / "b", resumes=False, **options))
    ways = {"a": built, "b": partial(built, **options)}
    return Artifacts.diff(tmp_path / "a", tmp_path / "b", builder=lambda each: ways[each.name](each))


@pytest.mark.parametrize(
    ("options", "kind", "name", "step"),
    [
        ({"seed": 2}, "order of the data", "samples of the batch", 1),
        ({"data": TensorDataset(OTHER_X, Y)}, "a batch's content", "batch[0]", 2),
        ({"weights": 2}, "weights before", "0.weight", 1),
        ({"rate": 0.02}, "rate", "", 1),
        ({"optimizer": partial(torch.optim.Adam, betas=(0.8, 0.9))}, "an option of the optimizer", "", 1),
        ({"optimizer": torch.optim.SGD}, "the optimizer", "class", 1),
        ({"act": nn.Tanh}, "a module's output", "1 (ReLU or Tanh), for the same input", 1),
        ({"drop": 0.1}, "a module's output", "2 (Dropout), for the same input", 1),
        ({"loss": F.l1_loss}, "the loss", "the loss", 1),
        ({"clip": 0.01}, "a gradient", "0.weight", 1),
    ],
)
def test_the_first_cause_of_a_difference_is_named(
    options: dict[str, Any], kind: str, name: str, step: int, tmp_path: Path
) -> None:
    found = differing(tmp_path, **options)
    assert found.cause is not None, found
    assert (found.cause.kind, found.cause.name) == (kind, name), found.cause
    assert found.cause.step.key == (1, 0, step) and found.cause.values[0] != found.cause.values[1]
    assert f"first cause, {found.cause.step}: {kind}" in str(found) and found.notes == ()


def test_equal_runs_have_no_cause(tmp_path: Path) -> None:
    found = differing(tmp_path)
    assert found.same and found.cause is None and found.notes == ()


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 3])
def test_a_rate_that_was_set_by_hand_is_the_cause_at_its_step(step: int, tmp_path: Path) -> None:
    def work(learner: Any) -> None:
        while learner.position.iteration < step:
            learner.step()
        learner.lr = 0.5
        learner.fit()

    found = differing(tmp_path, work)
    cause, (epoch, inside) = found.cause, divmod(step, STEPS)
    assert (cause.kind, cause.values) == ("rate", ("lr = 0.01", "lr = 0.5"))
    assert cause.step.key == (epoch + 1, 0, inside + 1) and cause.also == ()


def test_a_rate_of_a_schedule_is_the_cause_at_the_step_where_it_turns(tmp_path: Path) -> None:
    turned = differing(tmp_path, schedule=lambda step: 0.01 if step < 11 else 0.001).cause
    assert (
        turned.kind == "rate" and turned.step.iteration == 0 and turned.values == ("lr = 0.01", "lr = 0.001")
    )
    assert turned.step.key[0] == 2 and turned.step.step in (11 - STEPS, 12 - STEPS)


def test_weights_that_differ_before_any_value_does_are_found(tmp_path: Path) -> None:
    """With weights of zero behind it, a first layer's rate has no influence on the first losses."""
    found = differing(tmp_path, rate=0.011)
    assert found.first.step == 2 and found.cause.step.step == 1 and found.cause.kind == "rate"


def test_data_for_validation_that_differ_are_told_apart_from_the_training(tmp_path: Path) -> None:
    found = differing(tmp_path, valid=X + 1)
    assert found.first.split == "valid" and found.cause.kind == "validation", found


def test_random_draws_of_the_data_itself_are_the_content_of_a_batch(tmp_path: Path) -> None:
    found = differing(tmp_path, data=Noisy(4))
    assert found.cause.kind == "a batch's content" and found.cause.step.step == 1


def test_a_run_that_does_not_repeat_is_told(tmp_path: Path) -> None:
    built(tmp_path / "a", resumes=False).fit()
    built(tmp_path / "b", resumes=False, seed=2).fit()
    changed = {"a": partial(built, data=TensorDataset(X + 1, Y)), "b": partial(built, seed=2)}
    found = Artifacts.diff(tmp_path / "a", tmp_path / "b", builder=lambda each: changed[each.name](each))
    (note,) = found.notes
    assert f"{tmp_path / 'a'} took other steps than its record has: Loss differs after epoch 1" in note
    assert note in str(found)


def test_asking_for_the_cause_leaves_both_runs_as_they_are(tmp_path: Path) -> None:
    differing(tmp_path, rate=0.02)
    for name, rate in (("a", 0.01), ("b", 0.02)):
        run = Artifacts(tmp_path / name)
        assert run.verify() and run.finished and not run.branches
        again = built(tmp_path / f"{name}{name}", resumes=False, rate=rate)
        again.fit()
        there = built(tmp_path / name, rate=rate)
        pairs = zip(again.model.parameters(), there.model.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_the_cause_of_a_branch_is_what_was_changed_on_it(tmp_path: Path) -> None:
    learner = built(tmp_path / "run", resumes=False)
    while learner.position.iteration < STEPS + 4:
        learner.step()
    learner.rewind(to=(2, 1))
    learner.lr = 0.5
    learner.fit()
    run = learner.artifacts
    found = Artifacts.diff(run, run.branches["1"])
    assert found.cause.kind == "changed by hand" and found.cause.values == ("lr = 0.5 at step 9", "")
    assert found.made_by["changed by hand"] == found.cause.values and "lr = 0.5" in str(found)


@pytest.mark.parametrize("step", [(1, 3), (2, 1)], ids=["inside an epoch", "later"])
def test_a_run_and_its_branch_are_taken_again_up_to_the_first_cause(step: Any, tmp_path: Path) -> None:
    learner = built(tmp_path / "run", resumes=False)
    learner.fit()
    learner.rewind(to=step)
    learner.lr = 0.5
    learner.fit()
    learner.artifacts  # noqa: B018  (waits for the files)
    run = Artifacts(tmp_path / "run")
    before = all_weights(learner)
    for pair in ([run, run.branches["1"]], [run.branches["1"], run]):
        found = Artifacts.diff(*pair, builder=built)
        assert found.cause.kind == "rate", found
        assert (found.cause.step.epoch, found.cause.step.step) == (step[0], step[1] + 1)
        assert {*found.cause.values} == {"lr = 0.01", "lr = 0.5"}
        assert not found.notes
    assert Artifacts(tmp_path / "run").verify() and len(Artifacts(tmp_path / "run").branches) == 1
    assert torch.equal(all_weights(built(tmp_path / "run")), before)


def test_two_branches_are_taken_again_from_where_the_second_one_leaves_the_first(tmp_path: Path) -> None:
    learner = built(tmp_path / "run", resumes=False)
    for place, rate in (((2, 1), 0.5), ((2, 4), 0.25), ((1, 2), 0.125)):
        learner.fit()
        learner.rewind(to=place)
        learner.lr = rate
    learner.fit()
    run = learner.artifacts
    one, two = run.branches["1"], run.branches["2"]
    found = Artifacts.diff(one, two, builder=built)
    assert found.cause.kind == "rate" and found.cause.step.epoch == 2 and found.cause.step.step == 2
    assert found.cause.values == ("lr = 0.01", "lr = 0.5")


def test_a_branch_is_compared_with_another_run(tmp_path: Path) -> None:
    learner = built(tmp_path / "a", resumes=False)
    learner.fit()
    learner.rewind(to=(2, 1))
    learner.lr = 0.5
    learner.fit()
    built(tmp_path / "b", resumes=False, seed=2).fit()
    ways = {"a": built, "b": partial(built, seed=2)}
    branch = learner.artifacts.branches["1"]
    found = Artifacts.diff(branch, tmp_path / "b", builder=lambda each: ways[each.name](each))
    assert found.cause.kind == "order of the data" and not found.notes


def all_weights(learner: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()])

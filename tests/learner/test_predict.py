"""The model's outputs for a loader, joined on the host; the learner stays as it is."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exactness import Setup, differences, everything
from torch import Tensor, nn

from notebook_learner import (
    ClassificationOutput,
    ConfigurationError,
    Learner,
    LearnerBuilder,
    Paused,
    StepError,
)
from notebook_learner.evaluation.prediction import Gathered

X = [torch.randn(size, 6, generator=torch.Generator().manual_seed(size)) for size in (4, 4, 3)]


def a_learner(directory: Path, model: nn.Module | None = None, **builder: Any) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)) if model is None else model
    made = LearnerBuilder(directory).loss(F.cross_entropy).renderer("silent").with_application_logger(False)
    for verb, value in builder.items():
        made = getattr(made, verb)(value)
    return made.build(model, torch.optim.SGD(model.parameters(), lr=0.1))


def by_hand(model: nn.Module) -> Tensor:
    training = model.training
    with torch.no_grad():
        outputs = torch.cat([model.eval()(x) for x in X])
    model.train(training)
    return outputs


@pytest.mark.parametrize(
    "batches",
    [X, [(x,) for x in X], [(x, torch.zeros(len(x))) for x in X], [[x, "names"] for x in X]],
    ids=["x", "(x,)", "(x, y)", "[x, anything]"],
)
def test_all_outputs_in_eval_mode_as_one_tensor(batches: list[Any], tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    found = learner.predict(batches)
    assert torch.equal(found, by_hand(learner.model))
    assert found.shape == (11, 3)
    assert not found.requires_grad


def test_a_tensor_is_one_batch_and_not_a_loader_of_its_rows(tmp_path: Path) -> None:
    learner = a_learner(tmp_path, nn.Linear(6, 1))
    with torch.no_grad():
        expected = learner.model(X[0])
    assert torch.equal(learner.predict(X[0]), expected)
    assert expected.shape == (4, 1)


def test_a_function_is_given_each_output_and_its_batch(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    seen: list[Any] = []

    def best(output: Tensor, batch: Any) -> Any:
        seen.append(batch)
        return {"class": output.argmax(1), "name": [f"{value:.2f}" for value in batch[:, 0]]}

    found = learner.predict(X, best)
    assert torch.equal(found["class"], by_hand(learner.model).argmax(1))
    assert found["name"] == [f"{value:.2f}" for value in torch.cat(X)[:, 0]]
    assert all(one is other for one, other in zip(seen, X, strict=True))


def test_a_batch_of_another_kind_goes_through_the_validation_step(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        output = model(batch["x"])
        return ClassificationOutput(F.cross_entropy(output, batch["y"]), output, batch["y"])

    batches = [{"x": x, "y": torch.zeros(len(x), dtype=torch.long)} for x in X]
    learner = a_learner(tmp_path, valid_step=step)
    assert torch.equal(learner.predict(batches), by_hand(learner.model))


def test_what_cannot_be_told_is_said_and_a_step_helps(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    batches = [{"x": x} for x in X]
    with pytest.raises(StepError, match="what to give the model of a dict of 1: say how with step="):
        learner.predict(batches)
    found = learner.predict(batches, step=lambda model, batch: model(batch["x"]))
    assert torch.equal(found, by_hand(learner.model))
    learner.tools.use_step("valid", lambda model, batch: model(batch["x"]).sum())
    with pytest.raises(StepError, match="without `output` or `logits`"):
        learner.predict(batches)
    with pytest.raises(ConfigurationError, match="give an iterable of batches"):
        learner.predict(7)


def test_the_moving_average_predicts_where_it_validates(tmp_path: Path) -> None:
    learner = Setup(ema=True).learner(tmp_path)
    learner.step(4)
    assert learner.tools.ema_model is not None
    assert torch.equal(learner.predict(X), by_hand(learner.tools.ema_model))
    assert not torch.equal(learner.predict(X), by_hand(learner.model))


def test_half_precision_outputs_stay_as_they_are(tmp_path: Path) -> None:
    learner = a_learner(tmp_path, nn.Linear(6, 3), precision="bf16")
    assert learner.predict(X).dtype == torch.bfloat16


def test_an_interrupt_leaves_the_learner_as_it_was(tmp_path: Path) -> None:
    learner = Setup(seed=None, window=2).learner(tmp_path)
    learner.step(3)
    before = everything(learner)

    def interrupting(output: Tensor, batch: Tensor) -> Tensor:
        if batch is X[1]:
            os.kill(os.getpid(), signal.SIGINT)
        return output

    with pytest.raises(Paused, match="predict: broken off after batch 2 of 3"):
        learner.predict(X, interrupting)
    assert list(differences(everything(learner), before)) == []


def test_a_function_that_fails_tells_at_which_batch(tmp_path: Path) -> None:
    learner = a_learner(tmp_path)
    with pytest.raises(ZeroDivisionError) as failed:
        learner.predict(X, lambda output, batch: 1 // (len(batch) - 3))
    (note,) = failed.value.__notes__
    assert note.startswith("predict: this happened after batch 2 of 3")


# How outputs are joined ------------------------------------------------------------------------------


class Pair(NamedTuple):
    scores: Tensor
    hidden: Tensor


@dataclass
class Item:
    scores: Tensor
    note: str


def joined(*outputs: Any) -> Any:
    gathered = Gathered()
    for output in outputs:
        gathered.add(output)
    return gathered.joined()


def test_tuples_dicts_and_records_are_joined_piece_by_piece() -> None:
    one, two = torch.ones(2, 3), torch.zeros(1, 3)
    assert torch.equal(joined(one, two), torch.cat([one, two]))
    pair = joined(Pair(one, one), Pair(two, two))
    assert isinstance(pair, Pair)
    assert pair.hidden.shape == (3, 3)
    layers = joined([one, one], [two, two])
    assert [layer.shape for layer in layers] == [(3, 3), (3, 3)]
    nested = joined({"a": (one, None)}, {"a": (two, None)})
    assert nested["a"][0].shape == (3, 3)
    assert nested["a"][1] == [None, None]
    item = joined(Item(one, "x"), Item(two, "y"))
    assert item.scores.shape == (3, 3)
    assert item.note == ["x", "y"]


def test_what_has_no_first_dimension_has_an_entry_for_each_batch() -> None:
    assert joined(torch.tensor(1.0), torch.tensor(2.0)).tolist() == [1.0, 2.0]
    assert joined(0.5, 0.25) == [0.5, 0.25]
    assert joined("a", "b") == ["a", "b"]
    assert joined(["a", "b"], ["c"]) == ["a", "b", "c"]
    assert joined(np.ones(2), np.zeros(1)).tolist() == [1, 1, 0]


def test_lengths_that_differ_stay_a_list() -> None:
    found = joined(torch.ones(2, 5), torch.ones(2, 7))
    assert [each.shape for each in found] == [(2, 5), (2, 7)]
    assert joined(torch.ones(2), None)[1] is None
    assert [len(each) for each in joined((1, 2), (3,))] == [2, 1]


def test_an_output_is_copied_so_that_a_buffer_may_be_used_again() -> None:
    buffer, gathered = torch.zeros(1000, 2), Gathered()
    for value in (1, 2):
        gathered.add(buffer.fill_(value)[:1])
    found = gathered.joined()
    assert found[:, 0].tolist() == [1, 2]
    assert found.untyped_storage().nbytes() == found.nbytes

"""The one rule by which metrics find their inputs in what a step returned, and in its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.errors import OutputError
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.metric.inputs import RULE, TARGETS

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2


@dataclass(frozen=True)
class Own:
    loss: Tensor
    logits: Tensor


OUTPUTS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "(loss, output)": lambda loss, output, y: (loss, output),
    "(loss, output, targets)": lambda loss, output, y: (loss, output, y),
    "{loss, output}": lambda loss, output, y: {"loss": loss, "output": output},
    "{loss, logits}": lambda loss, output, y: {"loss": loss, "logits": output},
    "{loss, output, labels}": lambda loss, output, y: {"loss": loss, "output": output, "labels": y},
    "an object": lambda loss, output, y: SimpleNamespace(loss=loss, logits=output, target=y),
    "a frozen dataclass": lambda loss, output, y: Own(loss, output),
    "Hugging Face's": lambda loss, output, y: SequenceClassifierOutput(loss=loss, logits=output),
    "ours": ClassificationOutput,
}
BATCHES: dict[str, Any] = {
    "a pair": (X, Y),
    "three parts": (X, torch.zeros(12), Y),
    **{f"a dict with {name}": {"x": X, name: Y} for name in TARGETS},
}


def trained(make: Callable[[Tensor, Tensor, Tensor], Any], batch: Any, directory: Path) -> Any:
    def step(model: nn.Module, batch: Any) -> Any:
        x = batch["x"] if isinstance(batch, dict) else batch[0]
        output = model(x)
        return make(F.cross_entropy(output, Y), output, Y)

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    builder = LearnerBuilder(directory).train_step(step).valid_step(step).renderer("silent")
    builder = builder.metrics(Loss(), Accuracy()).num_epochs(2)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.5))
    learner.fit([batch] * 2, [batch, batch])
    return learner


def curves(learner: Any) -> list[list[float]]:
    history = learner.history
    return [history[split, name].tolist() for split in ("train", "valid") for name in ("Loss", "Accuracy")]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_inputs_are_found(output: str, batch: str, tmp_path: Path) -> None:
    learner = trained(OUTPUTS[output], BATCHES[batch], tmp_path / "one")
    expected = trained(ClassificationOutput, (X, Y), tmp_path / "ours")
    assert curves(learner) == curves(expected)


def test_what_the_step_returned_comes_before_the_batch(tmp_path: Path) -> None:
    learner = trained(lambda loss, output, y: (loss, output, output.argmax(1)), (X, Y), tmp_path)
    assert learner.history["train", "Accuracy"].tolist() == [100.0] * 4


def test_an_evaluation_goes_by_the_same_rule(tmp_path: Path) -> None:
    learner = trained(OUTPUTS["(loss, output)"], (X, Y), tmp_path)
    assert learner.evaluate([(X, Y)])["Accuracy"] == learner.evaluate([(X, torch.zeros(12), Y)])["Accuracy"]


def test_an_input_function_gets_what_the_step_returned(tmp_path: Path) -> None:
    seen: list[Any] = []

    def take(item: Any) -> Any:
        seen.append(type(item))
        return item.logits, Y

    model = nn.Linear(3, 2)
    builder = LearnerBuilder(tmp_path).train_step(lambda model, batch: Own(model(X).sum(), model(X)))
    builder = builder.metrics(Accuracy(input=take)).renderer("silent")
    builder.build(model, torch.optim.SGD(model.parameters(), lr=0.5)).fit([(X, Y)] * 3)
    assert {*seen} == {Own}


@pytest.mark.parametrize("batch", [X, (X,), {"x": X}])
def test_where_nothing_is_found_the_error_names_the_rule(batch: Any, tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return {"loss": model(X).sum(), "output": model(X)}

    model = nn.Linear(3, 2)
    builder = LearnerBuilder(tmp_path).train_step(step).metrics(Accuracy()).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with pytest.raises(OutputError) as caught:
        learner.fit([batch])
    assert "Accuracy needs `targets`" in str(caught.value) and RULE in str(caught.value)
    assert "a SimpleNamespace with `loss` and `output`" in str(caught.value)

"""Models and batches as they come: a model that computes its loss, dicts, tuples."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from notebook_learner import Evaluator, LearnerBuilder
from notebook_learner.errors import ConfigurationError, StepError
from notebook_learner.metric import Accuracy, Loss

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
Y = X.argmax(1)
PARTS = [(X[at : at + 8], Y[at : at + 8]) for at in (0, 8, 16)]


class Output(OrderedDict[str, Any]):
    """As those of transformers: keys that are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class Classifier(nn.Module):
    """Computes its own loss if it is given labels."""

    form = "attributes"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 4)

    def forward(self, values: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        logits = self.layer(values if mask is None else values * mask)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        if self.form == "a tuple":
            return loss, logits
        if self.form == "a dict":
            return {"loss": loss, "logits": logits}
        return Output(loss=loss, logits=logits)


def dicts(**more: Any) -> list[dict[str, Any]]:
    return [{"values": x, "labels": y, **more} for x, y in PARTS]


def by_hand() -> Classifier:
    model = Classifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    for x, y in PARTS:
        optimizer.zero_grad()
        F.cross_entropy(model.layer(x), y).backward()
        optimizer.step()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("form", ["attributes", "a tuple", "a dict"])
@pytest.mark.parametrize("kind", ["dicts", "dicts with more", "tuples"])
def test_a_model_with_its_own_loss_trains_as_it_is(form: str, kind: str, tmp_path: Path) -> None:
    batches: Any = {
        "dicts": dicts(),
        "dicts with more": dicts(sentence="not for the model"),
        "tuples": [(x, None, y) for x, y in PARTS],
    }[kind]
    model = Classifier()
    model.form = form
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics(Loss(), Accuracy())
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, batches, batches)
    learner.fit()
    assert same(model, by_hand())
    expected = (model.layer(X).argmax(1) == Y).float().mean() * 100
    assert learner.history.final("Accuracy", "valid") == pytest.approx(float(expected))


@pytest.mark.parametrize("form", ["attributes", "a tuple", "a dict"])
def test_it_is_evaluated_and_predicts_on_dicts_also_without_a_learner(form: str, tmp_path: Path) -> None:
    model = Classifier()
    model.form = form
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics(Loss(), Accuracy()).with_file_checkpointer()
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, dicts(), dicts())
    learner.fit()
    other = Classifier()
    other.form = form
    evaluator = Evaluator(
        tmp_path, other, metrics=[Loss(), Accuracy()], checkpoint="latest", renderer="silent"
    )
    expected = model.layer(X).detach()
    for each in (learner, evaluator):
        assert each.evaluate(dicts())["Loss"] == pytest.approx(float(F.cross_entropy(expected, Y)), rel=1e-6)
        assert torch.equal(each.predict(dicts()), torch.cat([model.layer(x) for x, _ in PARTS]))


@pytest.mark.parametrize("loss", ["its names", "the usual names"])
def test_a_loss_takes_the_keys_by_the_names_of_its_parameters(loss: str, tmp_path: Path) -> None:
    def named(output: Any, labels: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(output, labels) * mask.mean()

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Classifier().layer

        def forward(self, values: Tensor) -> Any:
            return self.layer(values)

    model = Plain()
    batches = dicts(mask=torch.ones(4)) if loss == "its names" else dicts()
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics(Loss(), Accuracy())
    builder.loss(named if loss == "its names" else F.cross_entropy)
    builder.build(model, SGD(model.parameters(), lr=0.1), None, batches).fit()
    assert same(model.layer, by_hand().layer)


def test_one_tensor_beside_the_targets_needs_no_name(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Linear(4, 4)
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics().loss(F.cross_entropy)
    builder.build(model, SGD(model.parameters(), lr=0.1), None, dicts()).fit()
    assert same(model, by_hand().layer)


def test_a_key_that_the_model_needs_is_named(tmp_path: Path) -> None:
    model = Classifier()
    batches = [{"pixels": x, "labels": y} for x, y in PARTS]
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics()
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, batches)
    with pytest.raises(StepError, match="Classifier takes 'values', and the batch has pixels, labels"):
        learner.fit()


def test_targets_that_the_loss_cannot_find_are_named(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    builder = LearnerBuilder(tmp_path).renderer("silent").metrics().loss(F.cross_entropy)
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, [{"a": X, "b": Y}])
    with pytest.raises(StepError, match="the batch has a, b: write def fn"):
        learner.fit()


def test_a_model_that_takes_no_targets_still_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not say how it trains"):
        model = nn.Linear(4, 4)
        LearnerBuilder(tmp_path).renderer("silent").build(model, SGD(model.parameters(), lr=0.1), None, PARTS)

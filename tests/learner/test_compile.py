"""`.compile()`: the forward goes through torch.compile, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import assert_same_bits, batches, by_hand, classifier, net, quiet, sgd
from torch import nn

from notebook_learner import ClassificationOutput


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Backend:
    """A compiler that counts the graphs it was given and runs them as they are."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


def test_the_models_forward_is_compiled(tmp_path):
    backend = Backend()
    model, expected = net(), net()
    learner = classifier(tmp_path).compile(backend=backend).num_epochs(2).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert backend.graphs > 0
    assert learner.model is model
    assert_same_bits(model, by_hand(expected, sgd(expected), batches(), epochs=2))


def test_a_cell_may_be_run_again_and_again(tmp_path):
    """torch gives up on a function after eight versions of it, and would run the ninth model eagerly."""
    graphs = []
    for run in range(12):
        backend = Backend()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 3 + run), nn.Linear(3 + run, 3))
        classifier(tmp_path / str(run)).compile(backend=backend).build(model, sgd(model)).fit(batches((4,)))
        graphs.append(backend.graphs)
    assert min(graphs) > 0


def test_the_names_of_the_weights_stay(tmp_path):
    model = net()
    classifier(tmp_path).compile(backend="eager").build(model, sgd(model)).fit(batches())
    assert list(model.state_dict()) == list(net().state_dict())


def test_a_step_of_the_models_own_reaches_the_compiled_forward(tmp_path):
    class WithSteps(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            return self.body(x)

        def train_step(self, batch):
            scores = self(batch[0])
            return ClassificationOutput(F.cross_entropy(scores, batch[1]), scores, batch[1])

    backend = Backend()
    model, expected = WithSteps(), net()
    quiet(tmp_path).compile(backend=backend).build(model, sgd(model)).fit(batches())
    assert backend.graphs > 0
    assert_same_bits(model.body, by_hand(expected, sgd(expected), batches()))


def test_gradients_may_be_compiled_too(tmp_path):
    model, expected = net(), net()
    classifier(tmp_path).compile(backend="aot_eager").build(model, sgd(model)).fit(batches())
    by_hand(expected, sgd(expected), batches())
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_compiled_model_may_have_an_average(tmp_path):
    model, plain = net(), net()
    one = classifier(tmp_path / "a").compile(backend="eager").ema(0.5).build(model, sgd(model))
    other = classifier(tmp_path / "b").ema(0.5).build(plain, sgd(plain))
    one.fit(batches(), batches())
    other.fit(batches(), batches())
    assert_same_bits(one.ema_model, other.ema_model)
    assert one.history.final("Loss", "valid") == other.history.final("Loss", "valid")


def test_without_it_nothing_is_compiled(tmp_path):
    model = net()
    classifier(tmp_path).build(model, sgd(model)).fit(batches())
    assert model._compiled_call_impl is None

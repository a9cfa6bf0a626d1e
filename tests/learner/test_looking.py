"""`inspect()` shows a step, and changes nothing."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch
from builder_support import Stream, adam, batches, classifier, net
from exactness import differences, everything
from outside import Outside
from torch import nn
from torch.nn import functional as F

from notebook_learner import BusyError, ClassificationOutput, ConfigurationError, StateError
from notebook_learner.state.state import OptimizerPart


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x):
        return self.head(self.drop(F.relu(self.norm(self.conv(x.view(-1, 1, 6, 6))))).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.view(-1, 6, 6))).mean(1))


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(36, 8)
        self.down = nn.Linear(8, 36)
        self.down.weight = nn.Parameter(self.up.weight.t().contiguous())
        self.again = nn.Linear(36, 8)
        self.again.weight = self.up.weight
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.again(self.down(self.up(x))))


MODELS = {"convnet": Convnet, "transformer": Transformer, "tied": Tied}


def pictures():
    source = torch.Generator().manual_seed(2)
    return [
        (torch.randn(8, 36, generator=source), torch.randint(0, 3, (8,), generator=source)) for _ in range(5)
    ]


def learner_of(kind, directory, *, window=1, precision="fp32", seed=5):
    torch.manual_seed(4)
    model = MODELS[kind]()
    builder = classifier(directory).num_epochs(2).grads_accumulation(window).precision(precision)
    if seed is not None:
        builder.seed(seed)
    return builder.build(model, adam(model), 0.01, pictures(), pictures()[:2])


def user_generators():
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_state_is_as_it_was_to_the_bit(kind, precision, window, tmp_path):
    learner = learner_of(kind, tmp_path, window=window, precision=precision)
    for steps in (0, 1, 2, 3):  # at the start, in a window, at its end, before a validation
        if steps:
            learner.step()
        modes = [module.training for module in learner.model.modules()]
        drawn = user_generators()
        gradients = [p.grad for p in learner.model.parameters()]
        held = [None if grad is None else grad.clone() for grad in gradients]
        output, batch, position = learner.output, learner.batch, learner.position
        before = everything(learner)
        for which in (None, "next", pictures()[3]):
            learner.inspect(which)
            assert list(differences(everything(learner), before)) == []
        assert learner.output is output and learner.batch is batch and learner.position == position
        assert [module.training for module in learner.model.modules()] == modes
        assert list(differences(user_generators(), drawn)) == []
        for parameter, grad, value in zip(learner.model.parameters(), gradients, held, strict=True):
            if value is None:
                assert parameter.grad is None
            else:
                assert torch.equal(parameter.grad, value)
                assert window > 1 or parameter.grad is grad


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("kind", MODELS)
def test_looking_at_every_step_leaves_the_bits_of_the_straight_run(kind, seed, tmp_path):
    straight, looked = (learner_of(kind, tmp_path / name, seed=seed) for name in ("a", "b"))
    torch.manual_seed(9)
    straight.fit()
    torch.manual_seed(9)
    while looked.status != "finished":
        looked.inspect()
        looked.step()
        looked.inspect("next") if looked.status != "finished" else None
    assert list(differences(everything(looked), everything(straight))) == []


def test_a_graph_that_is_alive_stays_usable(tmp_path):
    learner = learner_of("convnet", tmp_path)
    learner.breakpoints.add(lambda moment: moment.step == 2)
    learner.step(5)
    loss = learner.output.loss
    learner.inspect()
    (grad,) = torch.autograd.grad(loss, learner.model.head.weight)
    assert torch.equal(grad, learner.model.head.weight.grad)


def test_it_looks_at_the_batch_at_hand_the_next_or_any(tmp_path):
    learner = learner_of("tied", tmp_path)
    means = [float(x.mean()) for x, _ in pictures()]
    assert learner.inspect().batch[0].statistics.mean == pytest.approx(means[0], abs=1e-6), "none at hand yet"
    learner.step(2)
    assert learner.inspect().batch[0].statistics.mean == pytest.approx(means[1], abs=1e-6)
    assert learner.inspect("next").batch[0].statistics.mean == pytest.approx(means[2], abs=1e-6)
    assert learner.inspect(pictures()[4]).batch[0].statistics.mean == pytest.approx(means[4], abs=1e-6)


def test_the_next_batch_of_a_validation_or_an_epochs_end_is_the_first_of_the_next_epoch(tmp_path):
    learner = learner_of("tied", tmp_path)
    first = float(pictures()[0][0].mean())
    learner.step(5)
    assert learner.inspect("next").batch[0].statistics.mean == pytest.approx(first, abs=1e-6)
    learner.step(1)
    assert learner.position.split == "valid"
    assert learner.inspect("next").batch[0].statistics.mean == pytest.approx(first, abs=1e-6)


def test_after_an_error_it_shows_the_batch_that_failed(tmp_path):
    data = batches()
    data[1] = (data[1][0][:, :5], data[1][1])
    model = net()
    learner = classifier(tmp_path).build(model, adam(model), None, data)
    with pytest.raises(RuntimeError):
        learner.fit()
    seen = learner.inspect()
    assert seen.batch[0].shape == (8, 5) and "mat1 and mat2" in seen.failed


def test_values_are_those_of_the_step(tmp_path):
    learner = learner_of("tied", tmp_path)
    learner.step()
    seen = learner.inspect()
    model = MODELS["tied"]()
    model.load_state_dict(learner.model.state_dict())
    x, y = learner.batch
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    assert seen.loss == pytest.approx(loss.item(), rel=1e-6)
    assert seen["head"].gradient_norm == pytest.approx(
        float(torch.cat([p.grad.flatten() for p in model.head.parameters()]).norm()), rel=1e-5
    )
    losses = F.cross_entropy(model(x), y, reduction="none")
    assert [s.loss for s in seen.samples] == pytest.approx(
        sorted(losses.tolist(), reverse=True)[: len(seen.samples)]
    )
    assert set(seen.times) == {"forward", "backward", "optimizer"}
    assert seen.optimizer[0].options["lr"] == 0.01


def test_all_that_a_look_changes_is_copied_once(tmp_path, monkeypatch):
    learner, copies = learner_of("tied", tmp_path), []
    learner.step()
    capture = OptimizerPart.capture
    monkeypatch.setattr(OptimizerPart, "capture", lambda self: copies.append(self) or capture(self))
    learner.inspect()
    assert len(copies) == 1


def test_it_is_remembered_until_the_learner_moves(tmp_path):
    learner = learner_of("tied", tmp_path)
    learner.step()
    assert learner._last_seen is None
    seen = learner.inspect()
    assert learner._last_seen is seen
    learner.step()
    assert learner._last_seen is None


def test_values_that_the_step_logs_are_not_counted_twice(tmp_path):
    model = net()
    holder = []

    def step(module, batch):
        x, y = batch
        output = module(x)
        holder[0].log("Margin", output.max())
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    builder = classifier(tmp_path)
    builder._settings.loss = None
    holder.append(builder.train_step(step).build(model, adam(model), None, batches()))
    holder[0].step(2)
    holder[0].inspect()
    holder[0].step(1)
    assert len(holder[0].history["train", "Margin"]) == 3


def test_it_says_why_it_cannot_look(tmp_path):
    model = net()
    empty = classifier(tmp_path / "a").build(model, adam(model))
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        empty.inspect()
    once = classifier(tmp_path / "b").build(model, adam(model), None, Stream(batches()))
    with pytest.raises(StateError, match="walked again"):
        once.inspect("next")
    busy = classifier(tmp_path / "c").num_epochs(10**6).build(model, adam(model), None, batches())
    busy.start()
    try:
        with pytest.raises(BusyError):
            busy.inspect()
    finally:
        busy.pause()


@pytest.mark.parametrize("collected", [True, False])
def test_the_garbage_collector_is_left_as_it_was_by_a_look_and_by_an_interrupted_one(tmp_path, collected):
    seen, interrupted = Outside([]), False

    class Noticing(Convnet):
        def forward(self, x):
            seen.value.append(gc.isenabled())
            if interrupted:
                raise KeyboardInterrupt
            return super().forward(x)

    torch.manual_seed(4)
    model = Noticing()
    learner = classifier(tmp_path).num_epochs(1).build(model, adam(model), None, pictures())
    learner.step(1)
    gc.enable() if collected else gc.disable()
    try:
        del seen.value[:]
        learner.inspect()
        assert gc.isenabled() is collected and seen.value and not any(seen.value)
        interrupted = True
        with pytest.raises(KeyboardInterrupt):
            learner.inspect()
        assert gc.isenabled() is collected
    finally:
        gc.enable()

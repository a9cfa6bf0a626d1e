"""A window of n batches is one batch of n times the samples: to rounding, whatever their sizes.

Each comparison has two sides: the window's gradient is that of the one large batch, and the naive mean
of the batches' means is not.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from builder_support import (
    adam,
    assert_same_bits,
    batches,
    by_hand,
    classifier,
    net,
    plain,
    quiet,
    rates,
    sgd,
    with_own_gradients,
)
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from notebook_learner import SequenceOutput, StepError, TrainOutput
from notebook_learner.metric import LearningRate, Loss

UNEQUAL = (8, 1, 5, 2)
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-14}
FAR = 1e-3


def gradient(model):
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def distance(one, other):
    """How far two gradients are apart, relative to the second."""
    return ((one - other).norm() / other.norm()).item()


def joined(data):
    """Several batches as one."""
    return tuple(torch.cat(parts) for parts in zip(*data, strict=True))


def of_one_batch(model, data, loss_of):
    model.zero_grad()
    loss_of(model, joined(data)).backward()
    return gradient(model)


def of_the_mean_of_means(model, data, loss_of):
    model.zero_grad()
    (sum(loss_of(model, batch) for batch in data) / len(data)).backward()
    return gradient(model)


def of_the_window(builder, model, data):
    """What the optimizer was given for these batches; at a rate of 0 nothing moves."""
    learner = builder.grads_accumulation(len(data)).build(model, sgd(model, lr=0.0), None, data)
    learner.step(len(data))
    return gradient(model)


def mean_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


# Samples ---------------------------------------------------------------------------------------------


def with_named_gradients(model, batch):
    item = plain(model, batch)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return TrainOutput(model, dict(zip(names, torch.autograd.grad(item.loss, parameters), strict=True)), item)


def with_nothing_but_a_loss(model, batch):
    return SimpleNamespace(loss=mean_loss(model, batch))  # the samples are counted in the batch


STEPS = [plain, with_own_gradients, with_named_gradients, with_nothing_but_a_loss]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("step", STEPS)
def test_a_window_of_unequal_batches_is_one_large_batch(step, dtype, tmp_path):
    model, data = net(dtype=dtype), batches(UNEQUAL, dtype=dtype)
    mine = of_the_window(quiet(tmp_path).train_step(step), model, data)
    assert distance(mine, of_one_batch(model, data, mean_loss)) < CLOSE[dtype]
    assert distance(of_the_mean_of_means(model, data, mean_loss), of_one_batch(model, data, mean_loss)) > FAR


@pytest.mark.parametrize("step", STEPS)
def test_a_whole_training_in_windows_is_one_in_large_batches(step, tmp_path):
    """Ten batches in windows of four: the last window is short, and counts as the smaller batch it is."""
    data = batches((4, 1, 3, 2, 5, 5, 1, 4, 2, 3), dtype=torch.float64)
    large = [joined(data[:4]), joined(data[4:8]), joined(data[8:])]
    model, expected = net(dtype=torch.float64), net(dtype=torch.float64)
    builder = quiet(tmp_path).train_step(step).grads_accumulation(4).num_epochs(3)
    builder.build(model, adam(model)).fit(data)
    by_hand(expected, adam(expected), large, epochs=3)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_window_of_one_batch_is_the_plain_loop_to_the_bit(tmp_path):
    model, expected = net(), net()
    classifier(tmp_path).grads_accumulation(1).num_epochs(2).build(model, adam(model)).fit(batches())
    assert_same_bits(model, by_hand(expected, adam(expected), batches(), epochs=2))


def test_equal_batches_are_the_sum_divided_once_to_the_bit(tmp_path):
    model, expected = net(), net()
    data = batches((4,) * 6)
    classifier(tmp_path).grads_accumulation(3).build(model, sgd(model)).fit(data)
    optimizer = sgd(expected)
    for window in (data[:3], data[3:]):
        optimizer.zero_grad()
        for batch in window:
            mean_loss(expected, batch).backward()
        for parameter in expected.parameters():
            parameter.grad /= 3
        optimizer.step()
    assert_same_bits(model, expected)


def test_a_window_longer_than_the_epoch_is_applied_at_its_end(tmp_path):
    data = batches(UNEQUAL, dtype=torch.float64)
    model, expected = net(dtype=torch.float64), net(dtype=torch.float64)
    classifier(tmp_path).grads_accumulation(100).num_epochs(2).build(model, sgd(model)).fit(data)
    by_hand(expected, sgd(expected), [joined(data)], epochs=2)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_the_average_loss_is_that_of_the_samples(tmp_path):
    model, data = net(), batches(UNEQUAL)
    learner = classifier(tmp_path).metrics(Loss()).grads_accumulation(4).build(model, sgd(model, lr=0.0))
    learner.fit(data)
    right = mean_loss(model, joined(data)).item()
    naive = sum(mean_loss(model, batch).item() for batch in data) / len(data)
    assert learner.history.final("Loss", "train") == pytest.approx(right, rel=1e-6)
    assert abs(naive / right - 1) > FAR


# Tokens ----------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Scores three classes for every token."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(4)
        self.embedding = nn.Embedding(11, 5, dtype=dtype)
        self.head = nn.Linear(5, 3, dtype=dtype)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))

    def train_step(self, batch):
        tokens, targets = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits.movedim(-1, 1), targets)
        return SequenceOutput(loss, logits, targets)


def sentences(*lengths_of_batches, width=9):
    """Batches of sentences of these lengths, padded with ignored tokens."""
    source = torch.Generator().manual_seed(8)
    data = []
    for lengths in lengths_of_batches:
        tokens = torch.randint(0, 11, (len(lengths), width), generator=source)
        targets = torch.randint(0, 3, (len(lengths), width), generator=source)
        for row, length in enumerate(lengths):
            targets[row, length:] = -100
        data.append((tokens, targets))
    return data


def token_loss(model, batch):
    return model.train_step(batch).loss


def own_gradients_of_tokens(model, batch):
    item = model.train_step(batch)
    return TrainOutput(model, item.loss.backward(), item)


TOKENS = {
    "unequal token counts": ((9, 8), (1, 2), (5, 5), (3, 1)),
    "unequal batches too": ((9, 8, 7), (1,), (5, 5, 1, 1)),
    "a batch of padding": ((4, 2), (0, 0), (9, 1)),
    "a batch of padding first": ((0, 0), (4, 2), (9, 1)),
}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("own", [False, True], ids=["plain", "TrainOutput"])
def test_a_window_of_token_weighted_batches_is_one_large_batch(own, kind, dtype, tmp_path):
    model, data = Tagger(dtype), sentences(*TOKENS[kind])
    builder = quiet(tmp_path).train_step(own_gradients_of_tokens) if own else quiet(tmp_path)
    mine = of_the_window(builder, model, data)
    right = of_one_batch(model, data, token_loss)
    assert distance(mine, right) < CLOSE[dtype]
    some = [batch for batch in data if (batch[1] != -100).any()]
    assert distance(of_the_mean_of_means(model, some, token_loss), right) > FAR


def test_weighing_tokens_by_sentences_would_be_wrong(tmp_path):
    """The control: equal numbers of sentences hide unequal numbers of tokens."""

    def step(model, batch):
        return SimpleNamespace(loss=token_loss(model, batch))

    model, data = Tagger(), sentences((9, 8), (1, 2))
    mine = of_the_window(quiet(tmp_path).train_step(step), model, data)
    assert distance(mine, of_one_batch(model, data, token_loss)) > FAR


def test_a_window_without_a_single_token_moves_nothing(tmp_path):
    model, before = Tagger(), Tagger()
    quiet(tmp_path).grads_accumulation(2).build(model, sgd(model)).fit(sentences((0,), (0, 0)))
    assert_same_bits(model, before)


def test_a_window_without_a_gradient_moves_nothing(tmp_path):
    def step(model, batch):
        item = plain(model, batch)
        return TrainOutput(model, {"0.weight": None}, item)

    model, before = net(), net()
    quiet(tmp_path).train_step(step).grads_accumulation(2).build(model, sgd(model)).fit(batches())
    assert_same_bits(model, before)


# Precision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "close"), [("bf16", 1e-2), ("fp16", 2e-3)])
@pytest.mark.parametrize("step", [plain, with_own_gradients])
def test_a_window_in_half_precision_is_one_large_batch_to_its_rounding(precision, close, step, tmp_path):
    if precision == "fp16" and step is with_own_gradients:
        step = with_nothing_but_a_loss  # fp16 has to scale the loss before backward
    model, data = net(), batches((30, 2))
    mine = of_the_window(quiet(tmp_path).train_step(step).precision(precision), model, data)
    right = of_one_batch(model, data, mean_loss)
    naive = of_the_mean_of_means(model, data, mean_loss)
    assert distance(mine, right) < close
    assert distance(naive, right) > 10 * close
    assert distance(mine, right) > 0, "it was rounded at all"


def test_a_loss_scale_does_not_show_in_the_gradient(tmp_path):
    """fp16 with a window: scaled, weighed, unscaled, divided, and still the fp32 gradient."""
    model, data = net(), batches(UNEQUAL)
    mine = of_the_window(classifier(tmp_path).precision("fp16"), model, data)
    right = of_one_batch(model, data, mean_loss)
    assert mine.norm().item() == pytest.approx(right.norm().item(), rel=5e-3)


# When the optimizer and the schedule move ------------------------------------------------------------


class Unsized:
    """A loader that does not know its length."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)


@pytest.mark.parametrize("wrap", [list, Unsized], ids=["known length", "unknown length"])
def test_the_schedule_moves_once_per_window_and_once_for_a_short_last_one(wrap, tmp_path):
    moves = []

    def rate(step):
        moves.append(step)
        return 1.0 / (1 + step)

    model = net()
    builder = classifier(tmp_path).grads_accumulation(3).num_epochs(2).metric_train(LearningRate())
    learner = builder.build(model, sgd(model), rate)
    moves.clear()
    learner.fit(wrap(batches((2,) * 7)))
    per_epoch = 3
    assert moves[-1] == 2 * per_epoch
    assert len([step for step in moves if step]) == 2 * per_epoch
    updates = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 5]
    assert rates(learner) == [1.0 / (1 + update) for update in updates]


def test_a_torch_scheduler_of_steps_moves_once_per_window(tmp_path):
    model = net()
    builder = classifier(tmp_path).grads_accumulation(2).step_scheduler("step")
    learner = builder.build(model, sgd(model), lambda o: LambdaLR(o, lambda step: 1.0))
    learner.fit(batches((2,) * 5))
    assert learner.scheduler.last_epoch == 3


def test_known_and_unknown_lengths_give_the_same_bits(tmp_path):
    finals = []
    for wrap in (list, Unsized):
        model = net()
        builder = classifier(tmp_path / wrap.__name__).grads_accumulation(3).num_epochs(2)
        builder.build(model, adam(model), lambda step: 0.01 / (1 + step)).fit(wrap(batches((4,) * 7)))
        finals.append(model)
    assert_same_bits(*finals)


def test_weights_stay_until_a_window_is_full(tmp_path):
    model, before = net(), net()
    learner = classifier(tmp_path).grads_accumulation(3).build(model, sgd(model), None, batches((2,) * 6))
    learner.step(2)
    assert_same_bits(model, before)
    learner.step(1)
    assert not torch.equal(model[0].weight, before[0].weight)


# What cannot be accumulated --------------------------------------------------------------------------


@pytest.mark.parametrize("first", [plain, with_own_gradients])
def test_two_kinds_of_outputs_in_one_window_are_told(first, tmp_path):
    kinds = [plain, with_own_gradients]

    def step(model, batch):
        steps.append(None)
        return kinds[(len(steps) - 1 + kinds.index(first)) % 2](model, batch)

    steps = []
    model = net()
    with pytest.raises(StepError, match=r"return the same kind throughout a window"):
        quiet(tmp_path).train_step(step).grads_accumulation(2).build(model, sgd(model)).fit(batches())


def test_each_window_may_have_a_kind_of_its_own(tmp_path):
    def step(model, batch):
        steps.append(None)
        return (plain if (len(steps) - 1) // 2 % 2 == 0 else with_own_gradients)(model, batch)

    steps = []
    data = batches(UNEQUAL, dtype=torch.float64)
    model, expected = net(dtype=torch.float64), net(dtype=torch.float64)
    quiet(tmp_path).train_step(step).grads_accumulation(2).build(model, sgd(model)).fit(data)
    by_hand(expected, sgd(expected), [joined(data[:2]), joined(data[2:])])
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_an_outputs_weight_that_is_no_number_is_told(tmp_path):
    def step(model, batch):
        return SimpleNamespace(loss=mean_loss(model, batch), weight=torch.ones(3))

    model = net()
    builder = quiet(tmp_path).metrics().train_step(step).grads_accumulation(2)
    with pytest.raises(StepError, match=r"`weight` of the step's output has shape \(3,\).*how many samples"):
        builder.build(model, sgd(model)).fit(batches())

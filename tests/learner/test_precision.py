"""fp32, bf16 and fp16: against loops with autocast and GradScaler written by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from builder_support import (
    adam,
    assert_other_weights,
    assert_same_bits,
    batches,
    by_hand,
    classifier,
    net,
    quiet,
    rates,
    sgd,
)
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR, StepLR

from notebook_learner import StepError, TrainOutput
from notebook_learner.metric import GradNorm, LearningRate

NORM = 0.05


@pytest.mark.parametrize("name", ["fp32", torch.float32, None])
def test_fp32_is_the_plain_loop(name, tmp_path):
    model, expected = net(), net()
    builder = classifier(tmp_path)
    if name is not None:
        builder.precision(name)
    builder.build(model, adam(model)).fit(batches())
    assert_same_bits(model, by_hand(expected, adam(expected), batches()))


@pytest.mark.parametrize("name", ["bf16", torch.bfloat16])
def test_bf16_is_autocast_and_nothing_more(name, tmp_path):
    model, expected = net(), net()
    classifier(tmp_path).precision(name).build(model, adam(model)).fit(batches())
    optimizer = adam(expected)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(expected(x), y)
        loss.backward()
        optimizer.step()
    assert_same_bits(model, expected)
    assert model[0].weight.dtype is torch.float32
    assert_other_weights(model, by_hand(net(), adam(net()), []))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_validation_runs_in_the_same_precision(name, dtype, tmp_path):
    def look(model, batch):
        scores = model(batch[0])
        seen.append((model.training, scores.dtype))
        return F.cross_entropy(scores, batch[1])

    seen = []
    model = net()
    builder = quiet(tmp_path).train_step(look).valid_step(look).precision(name)
    builder.build(model, sgd(model)).fit(batches((4,)), batches((4,)))
    assert seen == [(True, dtype), (False, dtype)]


# fp16 ------------------------------------------------------------------------------------------------


def fp16_by_hand(model, optimizer, data, *, epochs=1, norm=None, scheduler=None, scaler=None):
    """The order torch documents: unscale, clip, step unless a gradient is not finite, update."""
    scaler = GradScaler("cpu") if scaler is None else scaler
    norms, lrs = [], []
    for _ in range(epochs):
        for x, y in data:
            lrs.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if norm is not None:
                norms.append(clip_grad_norm_(model.parameters(), norm).item())
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scheduler is not None and scaler.get_scale() >= before:
                scheduler.step()
    return norms, lrs


def with_an_overflow(at=1):
    """One batch so large that its gradient in fp16 is not finite; its loss is."""
    data = batches()
    data[at] = (data[at][0] * 6e4, data[at][1])
    return data


def test_fp16_is_autocast_with_a_scaler(tmp_path):
    model, expected = net(), net()
    classifier(tmp_path).precision("fp16").num_epochs(2).build(model, adam(model)).fit(batches())
    fp16_by_hand(expected, adam(expected), batches(), epochs=2)
    assert_same_bits(model, expected)


def test_gradients_are_clipped_after_they_were_unscaled(tmp_path):
    model, expected = net(), net()
    builder = classifier(tmp_path).precision("fp16").clip_gradients(norm=NORM)
    learner = builder.metric_train(GradNorm()).build(model, adam(model))
    learner.fit(batches())
    norms, _ = fp16_by_hand(expected, adam(expected), batches(), norm=NORM)
    assert_same_bits(model, expected)
    assert learner.history["train", "Gradient Norm"].tolist() == pytest.approx(norms, rel=1e-6)
    assert NORM < max(norms) < 10, "not the scaled ones, which are 65536 times larger"


@pytest.mark.parametrize("norm", [None, NORM])
def test_a_step_that_is_not_finite_is_left_out_by_optimizer_and_schedule(norm, tmp_path):
    def schedule(optimizer):
        return LambdaLR(optimizer, lambda step: 0.5**step)

    model, expected = net(), net()
    builder = classifier(tmp_path).precision("fp16").step_scheduler("step").metric_train(LearningRate())
    if norm is not None:
        builder.clip_gradients(norm=norm)
    learner = builder.build(model, adam(model), schedule)
    learner.fit(with_an_overflow())

    optimizer = adam(expected)
    scheduler = schedule(optimizer)
    _, lrs = fp16_by_hand(expected, optimizer, with_an_overflow(), norm=norm, scheduler=scheduler)
    assert_same_bits(model, expected)
    assert rates(learner) == lrs
    assert lrs[2] == lrs[1], "the second step was left out"
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_step_left_out_of_a_window_counts_as_none(tmp_path):
    model = net()
    builder = classifier(tmp_path).precision("fp16").grads_accumulation(2).metric_train(LearningRate())
    learner = builder.num_epochs(2).build(model, sgd(model), lambda step: 0.1 * 0.5**step)
    learner.fit(with_an_overflow())
    assert rates(learner) == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]


def test_an_average_passes_over_a_step_that_was_left_out(tmp_path):
    model = net()
    learner = (
        classifier(tmp_path).precision("fp16").ema(0.5).build(model, sgd(model), None, with_an_overflow())
    )
    learner.step(1)
    before = [p.clone() for p in learner.tools.ema_model.parameters()]
    learner.step(1)
    assert all(torch.equal(a, b) for a, b in zip(learner.tools.ema_model.parameters(), before, strict=True))
    learner.step(1)
    assert not torch.equal(learner.tools.ema_model[3].weight, before[2])


def test_a_schedule_of_epochs_moves_even_where_steps_were_left_out(tmp_path):
    model = net()
    builder = classifier(tmp_path).precision("fp16").num_epochs(2).metric_train(LearningRate())
    learner = builder.build(model, sgd(model), lambda o: StepLR(o, 1, gamma=0.5))
    learner.fit(with_an_overflow())
    assert rates(learner) == [0.1] * 4 + [0.05] * 4


def test_a_norm_that_is_not_finite_is_shown_as_such(tmp_path):
    model = net()
    learner = classifier(tmp_path).precision("fp16").metric_train(GradNorm()).build(model, sgd(model))
    learner.fit(with_an_overflow())
    finite = [math.isfinite(norm) for norm in learner.history["train", "Gradient Norm"]]
    assert finite == [True, False, True, True]


def test_gradients_that_a_step_made_cannot_be_scaled_and_that_is_told(tmp_path):
    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return TrainOutput(model, loss.backward(), loss)

    model = net()
    with pytest.raises(StepError, match=r"precision\('fp16'\) has to scale the loss.*precision\('bf16'\)"):
        quiet(tmp_path).metrics().precision("fp16").train_step(step).build(model, sgd(model)).fit(batches())


def test_bf16_takes_gradients_that_a_step_made(tmp_path):
    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return TrainOutput(model, loss.backward(), loss)

    one, other = net(), net()
    quiet(tmp_path / "a").metrics().precision("bf16").train_step(step).build(one, sgd(one)).fit(batches())
    classifier(tmp_path / "b").precision("bf16").build(other, sgd(other)).fit(batches())
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-4)

"""What each condition measures and makes of it, against values worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from notebook_learner.breakpoint import (
    AtStep,
    DeadUnits,
    EveryNSteps,
    GradNorm,
    LossSpike,
    Measured,
    MetricIs,
    Moment,
    NonFinite,
    UpdateRatio,
    When,
)
from notebook_learner.event import Column

NAN, INF = float("nan"), float("inf")


def two_layers(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3, **options), nn.ReLU(), nn.Linear(3, 2, **options))


def moment_of(model, loss=1.0, *, scaled=False, gradients=1.0):
    """After backward: every gradient holds this value."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moment = Moment(model, optimizer, list(model.parameters()), scaled=scaled)
    moment.output = SimpleNamespace(loss=torch.tensor(loss, requires_grad=True) * 1)
    return moment


def judged(condition, *values, first=1):
    return condition.judge(list(range(first, first + len(values))), np.array(values, dtype=np.float64))


# NonFinite ---------------------------------------------------------------------------------------------


def attached(model, **options):
    condition = NonFinite(**options)
    condition.attach(model)
    return condition


def hits(condition, moment):
    value = float(condition.measure(moment))
    found = judged(condition, value)
    return found is not None


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_hits(loss):
    model = two_layers()
    assert hits(attached(model), moment_of(model, loss))
    assert not hits(attached(model), moment_of(model, 1e30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_one_entry_of_one_gradient_hits_and_all_gradients_keep_their_bits(dtype, wrong):
    model = two_layers(dtype=dtype)
    moment = moment_of(model, gradients=0.1)
    condition = attached(model)
    before = [p.grad.clone() for p in model.parameters()]
    assert not hits(condition, moment)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))
    model[2].bias.grad[1] = wrong
    assert hits(condition, moment)
    model[2].bias.grad[1] = 0
    assert not hits(condition, moment), "a flag of before is not left standing"


def test_gradients_of_several_types_and_sparse_and_complex_ones_are_looked_at():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5, 2, sparse=True)
            self.wave = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
            self.short = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))

    model = Mixed()
    condition = attached(model)
    for place in ("words", "wave", "short", None):
        model.words.weight.grad = None
        (model.words(torch.tensor([3])) * (NAN if place == "words" else 1.0)).sum().backward()
        assert model.words.weight.grad.is_sparse
        model.wave.grad = torch.tensor([1j, complex(0, NAN if place == "wave" else 1)])
        model.short.grad = torch.tensor([1.0, INF if place == "short" else 1.0], dtype=torch.bfloat16)
        moment = Moment(model, None, list(model.parameters()))
        moment.output = SimpleNamespace(loss=torch.tensor(1.0))
        assert hits(condition, moment) == (place is not None), place


def test_parameters_without_gradients_are_passed_over():
    model = two_layers()
    moment = moment_of(model)
    for parameter in model.parameters():
        parameter.grad = None
    assert not hits(attached(model), moment)


def test_scaled_gradients_may_overflow():
    model = two_layers()
    assert not hits(attached(model), moment_of(model, gradients=INF, scaled=True))
    assert hits(attached(model), moment_of(model, NAN, scaled=True))


def test_activations_are_watched_by_hooks_that_go_again():
    model = two_layers()
    condition = attached(model, activations=True)
    with torch.no_grad():
        model[0].bias[0] = INF
    model(torch.ones(2, 4))
    assert hits(condition, moment_of(model)), "an infinity that never reached the loss"
    condition.detach()
    assert not any(module._forward_hooks for module in model.modules())


def test_flags_do_not_run_out_in_a_long_block():
    model = two_layers()
    condition = attached(model)
    moment = moment_of(model)
    values = [float(condition.measure(moment)) for _ in range(5000)]
    model[0].bias.grad[0] = NAN
    values.append(float(condition.measure(moment)))
    assert judged(condition, *values).at == 5000


def test_the_step_before_is_blamed_where_parameters_are_broken():
    model = two_layers()
    assert NonFinite().blame(model) == ""
    with torch.no_grad():
        model[2].weight[0, 0] = NAN
    assert NonFinite().blame(model) == "the update of this step makes 2.weight non-finite"
    with torch.no_grad():
        model[0].bias[0] = INF
    assert "0.bias and 1 more" in NonFinite().blame(model)


# Norm, ratio, units ------------------------------------------------------------------------------------


def test_the_gradient_norm_is_that_of_all_together():
    model = two_layers()
    moment = moment_of(model, gradients=2.0)
    count = sum(p.numel() for p in model.parameters())
    value = float(GradNorm(above=1).measure(moment))
    assert value == pytest.approx(2 * count**0.5)
    assert judged(GradNorm(above=value), value) is None
    assert judged(GradNorm(above=value * 0.99), 0.0, value).at == 1


def test_the_gradient_norm_counts_a_sparse_gradient_as_it_is_summed():
    words, dense = nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1)
    model = nn.Sequential(words, dense)
    moment = moment_of(model)
    words.weight.grad = None
    model(torch.tensor([1, 1, 3])).sum().backward()
    assert words.weight.grad.is_sparse
    grads = [p.grad.to_dense() for p in model.parameters()]
    want = torch.cat([grad.flatten() for grad in grads]).norm().item()
    assert float(GradNorm(above=1).measure(moment)) == pytest.approx(want)


def test_the_update_ratio_is_the_largest_of_all_weights():
    model = two_layers()
    moment = moment_of(model)
    condition = UpdateRatio(above=0.5, below=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    condition.prepare(moment)
    moment.optimizer.step()
    value = float(condition.measure(moment))
    by_hand = max(
        ((p.detach() - old).norm() / old.norm()).item()
        for p, old in zip(model.parameters(), before, strict=True)
        if p.ndim > 1
    )
    assert value == pytest.approx(by_hand, rel=1e-5)
    assert condition.measure(moment) is None, "a step without an update"
    assert judged(condition, 0.3) is None
    assert "above 0.5" in judged(condition, 0.3, 0.6).text
    assert "below 0.1" in judged(condition, 0.3, 0.01).text
    assert judged(condition, NAN) is not None, "what is not comparable is above every bound"


def test_what_begins_at_zero_may_move_as_it_likes():
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    moment, condition = moment_of(model), UpdateRatio(above=0.5)
    condition.prepare(moment)
    moment.optimizer.step()
    assert float(condition.measure(moment)) == 0
    scale = nn.Module()
    scale.weight = nn.Parameter(torch.ones(3))
    moment = moment_of(scale)
    condition.prepare(moment)
    moment.optimizer.step()
    assert float(condition.measure(moment)) == pytest.approx(0.1), (
        "of a model without weights, all that it has"
    )


@pytest.mark.parametrize(
    ("shape", "dead", "share"), [((5, 4), (slice(None), 1), 0.25), ((5, 4, 3, 3), (slice(None), 2), 0.25)]
)
def test_dead_units_are_zero_for_every_sample(shape, dead, share):
    model = nn.Sequential(nn.ReLU())
    condition = DeadUnits(0.2)
    condition.attach(model)
    values = torch.ones(shape)
    values[dead] = -1
    values[0, 0] = -1  # dead for one sample only
    model(values)
    assert float(condition.measure(moment_of(two_layers()))) == pytest.approx(share)
    assert condition.measure(moment_of(two_layers())) is None, "no forward pass since"
    condition.detach()
    assert not model[0]._forward_hooks


def test_units_of_a_sequence_come_last():
    model = nn.Sequential(nn.GELU())
    condition = DeadUnits()
    condition.attach(model)
    values = torch.ones(2, 7, 4)
    values[..., 3] = 0
    model(values)
    assert float(condition.measure(moment_of(two_layers()))) == pytest.approx(0.25)


# LossSpike ---------------------------------------------------------------------------------------------


def test_a_spike_stands_out_of_the_last_steps():
    condition = LossSpike(z=4, warmup=5)
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0]
    assert judged(condition, *calm) is None
    found = judged(condition, 1.02, 3.0, 1.0, first=7)
    assert found.at == 1
    spread = np.std([*calm, 1.02], ddof=1)
    assert f"{(3.0 - np.mean([*calm, 1.02])) / spread:.3g} deviations" in found.text


def test_a_ratio_goes_by_the_mean():
    condition = LossSpike(ratio=2, warmup=2)
    assert judged(condition, 1.0, 1.0, 1.9) is None
    assert "times the mean" in judged(condition, 2.7, first=4).text


def test_a_ratio_has_an_answer_where_the_mean_is_nothing_or_less():
    condition = LossSpike(ratio=2, warmup=2)
    assert judged(condition, 0.0, 0.0, 0.0) is None
    assert judged(condition, 0.5, first=4).text == (
        "loss 0.5 is infinitely many times the mean of the last 3"
    )
    assert judged(LossSpike(ratio=2, warmup=2), -1.0, -1.1, -0.9, -3.0, 5.0) is None


def test_nothing_is_judged_before_the_warm_up_and_nan_is_left_to_others():
    assert judged(LossSpike(z=1, warmup=5), 1, 1, 1, 99) is None
    condition = LossSpike(z=1, warmup=2)
    assert judged(condition, 1.0, 1.1, NAN, INF) is None
    assert judged(condition, 5.0, first=5) is not None


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=30), st.integers(0, 29))
def test_steps_that_are_taken_back_are_forgotten(values, back):
    back = min(back, len(values))
    whole, cut = LossSpike(z=1e9, warmup=2), LossSpike(z=1e9, warmup=2)
    judged(whole, *values)
    whole.forget_after(back)
    judged(cut, *values[:back])
    assert list(whole._seen) == list(cut._seen)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60), st.data())
def test_where_blocks_are_cut_does_not_matter(values, data):
    at = data.draw(st.integers(0, len(values)))
    whole, parts = LossSpike(z=1, warmup=3, window=10), LossSpike(z=1, warmup=3, window=10)
    expected = judged(whole, *values)
    found = judged(parts, *values[:at])
    if found is None:
        found = judged(parts, *values[at:], first=at + 1)
        found = found and found._replace(at=found.at + at)
    assert found == expected


# By number and by metric -------------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(0, 60))
def test_at_step_counts_the_steps_up_to_the_one_before(step, iteration):
    left = AtStep(step).left(epoch=1, step=iteration, iteration=iteration)
    assert left == (None if iteration >= step else step - 1 - iteration)


def test_a_step_of_an_epoch():
    condition = AtStep(3, epoch=2)
    assert condition.left(1, 0, 0) is None
    assert condition.left(2, 0, 10) == 2
    assert condition.left(2, 3, 13) is None


@given(st.integers(1, 9), st.integers(0, 40))
def test_every_n_steps_stops_before_each_multiple(n, iteration):
    left = EveryNSteps(n).left(1, iteration, iteration)
    assert 0 <= left < n and (iteration + left + 1) % n == 0


@pytest.mark.parametrize("op", [">", ">=", "<", "<=", "==", "!="])
@given(values=st.lists(st.floats(-2, 2), min_size=1, max_size=9), bound=st.sampled_from([-1.0, 0.0, 1.0]))
def test_a_metric_is_compared_row_by_row(op, values, bound):
    found = MetricIs("Loss", op, bound).judge(
        "train", {"Loss": Column(np.array(values), np.ones(len(values)))}
    )
    compare = {">": float.__gt__, ">=": float.__ge__, "<": float.__lt__, "<=": float.__le__}
    compare |= {"==": float.__eq__, "!=": float.__ne__}
    expected = [i for i, value in enumerate(values) if compare[op](value, bound)]
    assert (None if found is None else found.at) == (expected[0] if expected else None)


def test_rows_without_a_value_other_splits_and_other_metrics_do_not_hit():
    column = Column(np.array([NAN, 3.0]), np.array([0.0, 1.0]))
    assert MetricIs("Loss", "!=", 1).judge("train", {"Loss": column}).at == 1
    assert MetricIs("Loss", ">", 1, split="valid").judge("train", {"Loss": column}) is None
    assert MetricIs("Loss", ">", 1).judge("train", {"Accuracy": column}) is None


# How they are written ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AtStep(0), "counted from 1"),
        (lambda: AtStep(True), "counted from 1"),
        (lambda: EveryNSteps(0), "from 1"),
        (lambda: GradNorm(above=0), "above 0"),
        (lambda: GradNorm(above=NAN), "above 0"),
        (lambda: UpdateRatio(), "give above"),
        (lambda: LossSpike(1, ratio=2), "choose one"),
        (lambda: LossSpike(-1), "above 0"),
        (lambda: LossSpike(window=5, warmup=9), "warmup"),
        (lambda: DeadUnits(0), "between 0 and 1"),
        (lambda: MetricIs("Loss", "=>", 1), "one of > >="),
        (lambda: MetricIs("Loss", ">", 1, split="test"), "the split is"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_conditions_are_written_as_they_were_made():
    made = [
        "AtStep(5)",
        "AtStep(5, epoch=2)",
        "EveryNSteps(7)",
        "GradNorm(above=3)",
        "LossSpike(z=6)",
        "LossSpike(ratio=3)",
        "MetricIs('Loss', '>', 2)",
        "MetricIs('Loss', '>', 2, split='valid')",
        "NonFinite()",
        "NonFinite(activations=True)",
        "DeadUnits(0.5)",
        "UpdateRatio(above=0.1)",
        "UpdateRatio(above=0.1, below=0.001)",
    ]
    for text in made:
        assert repr(eval(text)) == text


def test_a_function_may_say_why():
    moment = moment_of(two_layers(), loss=3.0)
    assert When(lambda m: m.loss > 2).asks(moment) is True
    assert When(lambda m: "too high").asks(moment) == "too high"
    assert repr(When(lambda m: True)) == "a function"
    assert repr(When(judged)) == "judged"


def test_a_condition_that_lacks_its_method_says_which():
    class Odd(Measured):
        pass

    with pytest.raises(NotImplementedError, match=r"^Odd must define measure\(moment\)$"):
        Odd().measure(moment_of(two_layers()))

"""The place of the first NaN is named: planted in the data, a parameter, a module, the loss, backward."""

from __future__ import annotations

import math

import pytest
import torch
from looked_at import ConvNet, Tied, classification, hooks_of, images
from torch import nn
from torch.nn import functional

from notebook_learner.inspection import look, trace_non_finite


def poison(module, value=math.nan):
    """Make one value of a module's output not finite."""

    def hook(_, __, output):
        spoilt = output.clone()
        spoilt.view(-1)[3] = value
        return spoilt

    return module.register_forward_hook(hook)


def stage_and_name(culprit):
    return culprit and (culprit.stage, culprit.name)


class Step(nn.Module):
    """Two linear layers with a function of one's own between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.between, self.last = nn.Linear(3, 4), between, nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def step_of(model, x, loss=lambda output: output.square().mean()):
    def run():
        value = loss(model(x))
        value.backward()
        return value

    return run


@pytest.mark.parametrize("name", ["conv1", "norm", "conv2", "drop", "fc"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_layer_with_the_planted_value_is_named(name, value):
    model, batch = ConvNet(), images()
    poison(model.get_submodule(name), value)
    culprit = trace_non_finite(batch, classification(model, batch), model)
    assert stage_and_name(culprit) == ("forward", name)
    kind = type(model.get_submodule(name)).__name__
    assert f"values of the output of {name} ({kind}) are not finite" in culprit.text


def test_a_layer_deep_in_a_transformer_is_named():
    model = Tied()
    batch = (torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, 5)))
    poison(model.encoder.linear1)

    def run():
        loss = functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        return loss

    assert stage_and_name(trace_non_finite(batch, run, model)) == ("forward", "encoder.linear1")


def test_bad_data_is_the_culprit_before_any_module():
    model, (x, y) = ConvNet(), images()
    x[2, 0, 1, 1] = math.nan
    poison(model.fc)
    culprit = trace_non_finite({"x": x, "y": y}, classification(model, (x, y)), model)
    assert stage_and_name(culprit) == ("input", "['x']")
    assert "1 of 384 values of the batch['x']" in culprit.text


@pytest.mark.parametrize("name", ["fc.weight", "conv1.bias"])
def test_a_bad_parameter_is_named(name):
    model, batch = ConvNet(), images()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = math.nan
    culprit = trace_non_finite(batch, classification(model, batch), model)
    assert stage_and_name(culprit) == ("parameter", name)
    assert name in culprit.text


def test_a_bad_buffer_is_named():
    model, batch = ConvNet().eval(), images()
    model.norm.running_var[0] = math.nan
    culprit = trace_non_finite(batch, classification(model, batch), model)
    assert stage_and_name(culprit) == ("parameter", "norm.running_var")


def test_the_code_between_two_modules_is_pointed_at():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(torch.log(self.first(x) * 0 - 1))

    model = Net()
    culprit = trace_non_finite(None, step_of(model, torch.ones(2, 3)), model)
    assert stage_and_name(culprit) == ("forward", "Net")
    assert culprit.text.endswith("look at its own forward, after first (Linear) and before last (Linear)")


def test_the_code_of_a_step_that_calls_the_parts_itself_is_pointed_at():
    model = nn.ModuleDict({"first": nn.Linear(3, 4), "last": nn.Linear(4, 1)})

    def run():
        loss = model["last"](torch.log(model["first"](torch.ones(2, 3)) * 0 - 1)).sum()
        loss.backward()
        return loss

    culprit = trace_non_finite(None, run, model)
    assert stage_and_name(culprit) == ("forward", "last")
    assert "look at what the step computes, after first (Linear)" in culprit.text


def test_the_loss_is_named_when_the_model_is_innocent():
    model = nn.Linear(3, 1)
    run = step_of(model, torch.ones(2, 3), lambda output: torch.log(output * 0 - 1).sum())
    culprit = trace_non_finite(None, run, model)
    assert stage_and_name(culprit) == ("loss", "loss")
    assert "the loss is NaN" in culprit.text


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x * 0)


class RootOutside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.sqrt(self.first(x) * 0))


def test_a_module_that_goes_wrong_only_on_the_way_back_is_named():
    model = Step(Root())
    culprit = trace_non_finite(None, step_of(model, torch.ones(2, 3)), model)
    assert stage_and_name(culprit) == ("backward", "between")
    assert "backward pass of between (Root)" in culprit.text


def test_code_that_goes_wrong_only_on_the_way_back_is_found_behind_a_module():
    model = RootOutside()
    culprit = trace_non_finite(None, step_of(model, torch.ones(2, 3)), model)
    assert stage_and_name(culprit) == ("backward", "first")
    assert culprit.text.endswith("look at what the code does with this output in the forward of RootOutside")


def test_a_loss_that_goes_wrong_only_on_the_way_back_is_named():
    model = nn.Sequential(nn.Linear(3, 1))
    run = step_of(model, torch.ones(2, 3), lambda output: torch.sqrt((output * 0).sum()))
    culprit = trace_non_finite(None, run, model)
    assert stage_and_name(culprit) == ("backward", "loss")


def test_a_parameter_whose_gradient_alone_goes_wrong_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.size = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x + self.size.sqrt()

    model = Scale()
    culprit = trace_non_finite(None, step_of(model, torch.ones(2, 3)), model)
    assert stage_and_name(culprit) == ("backward", "size")


def test_an_update_that_ruins_the_weights_is_named():
    model, batch = nn.Linear(3, 2), (torch.ones(2, 3), torch.tensor([0, 1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=math.inf)
    inspection = look(batch, classification(model, batch), model, optimizer, apply=optimizer.step)
    assert stage_and_name(inspection.first_non_finite) == ("update", "weight")
    assert inspection.loss is not None and math.isfinite(inspection.loss)


def test_a_step_without_anything_wrong_has_no_culprit():
    model, batch = ConvNet(), images()
    assert trace_non_finite(batch, classification(model, batch), model) is None


def masked_attention(mask):
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(2, 3, 4)

    def run():
        loss = model(x, x, x, attn_mask=mask)[0].sum()
        loss.backward()
        return loss

    return trace_non_finite((x, mask), run, model)


def test_a_mask_of_minus_infinity_is_no_culprit():
    assert masked_attention(torch.triu(torch.full((3, 3), -math.inf), 1)) is None


def test_a_mask_that_leaves_nothing_makes_the_attention_the_culprit():
    assert stage_and_name(masked_attention(torch.full((3, 3), -math.inf))) == (
        "forward",
        "MultiheadAttention",
    )


def test_an_overflow_in_half_precision_is_found_though_the_loss_is_finite():
    model = Step(nn.Identity()).half()
    with torch.no_grad():
        model.first.weight.fill_(6e4)
    run = step_of(model, torch.ones(2, 3).half(), lambda output: torch.sigmoid(output.float()).mean())
    assert stage_and_name(trace_non_finite(None, run, model)) == ("forward", "first")


def test_the_second_call_of_a_shared_module_is_told_from_the_first():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.exp = Exp()

        def forward(self, x):
            return self.exp(self.exp(x))

    class Exp(nn.Module):
        def forward(self, x):
            return torch.exp(x)

    model = Twice()
    x = torch.full((2,), 6.0, requires_grad=True)
    culprit = trace_non_finite(None, step_of(model, x, lambda output: output.sum()), model)
    assert stage_and_name(culprit) == ("forward", "exp")
    assert "exp (Exp), call 2" in culprit.text


def test_what_was_seen_before_an_exception_counts():
    model, batch = ConvNet(), images()
    poison(model.conv2)

    def run():
        model(batch[0])
        raise RuntimeError("a NaN was met")

    assert stage_and_name(trace_non_finite(batch, run, model)) == ("forward", "conv2")
    assert len(set(hooks_of(model))) == 2  # the poison, and nothing else
    assert sum(hooks_of(model)) == 1


def test_a_keyboard_interrupt_is_not_swallowed_and_leaves_no_hook():
    model = ConvNet()

    def run():
        model(images()[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_non_finite(None, run, model)
    assert sum(hooks_of(model)) == 0

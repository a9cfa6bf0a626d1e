"""One look at a step: what it says of layers, updates, optimizer and memory, and what it leaves behind."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import subprocess
import sys
import weakref
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from looked_at import ConvNet, Tied, classification, hooks_of, images
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from notebook_learner import ClassificationOutput
from notebook_learner.inspection import Inspection, look


@pytest.fixture(autouse=True)
def the_same_weights_each_time():
    """Of some weights every unit is dead, and of some the bias has most of the gradient."""
    torch.manual_seed(1)


def looked_at(model, batch, optimizer=None, **options):
    run = classification(model, batch)
    return look(batch, run, model, optimizer, **options)


def squares(model, x):
    def run():
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return run


# ------------------------------------------------------------------------------------------ layers


def test_activations_are_those_of_the_step():
    model, batch = ConvNet().eval(), images()
    layer = looked_at(model, batch)["norm"]
    want = model.norm(model.conv1(batch[0])).detach().double().numpy()
    assert (layer.kind, layer.shape, layer.calls, layer.parameters) == ("BatchNorm2d", (6, 4, 8, 8), 1, 8)
    assert layer.activation.mean == pytest.approx(want.mean(), rel=1e-6)
    assert layer.activation.std == pytest.approx(want.std(), rel=1e-6)
    # The ReLU after it works in place: its input was looked at before that.
    assert layer.activation.min == pytest.approx(want.min())
    assert layer.activations.counts == tuple(np.histogram(want, bins=20)[0])


def test_gradient_norms_are_those_of_the_layers_own_parameters():
    model, batch = ConvNet(), images()
    inspection = looked_at(model, batch)
    for name in ("conv1", "norm", "conv2", "fc"):
        gradients = [p.grad.flatten() for p in model.get_submodule(name).parameters()]
        want = torch.cat(gradients).double()
        assert inspection[name].gradient_norm == pytest.approx(want.norm().item(), rel=1e-6)
        assert inspection[name].gradients.counts == tuple(np.histogram(want.numpy(), bins=20)[0])
        assert inspection[f"{name}.weight"].gradient_norm == pytest.approx(gradients[0].norm().item())


def test_update_ratios_are_how_far_the_weights_moved():
    model, batch = ConvNet(), images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    inspection = looked_at(model, batch, optimizer, apply=optimizer.step)
    moved = {name: (p.detach().double() - before[name]).norm() for name, p in model.named_parameters()}
    want = moved["fc.weight"] / before["fc.weight"].norm()
    assert inspection["fc.weight"].update_ratio == pytest.approx(want.item(), rel=1e-5)
    whole = moved["fc.weight"].hypot(moved["fc.bias"])
    whole /= before["fc.weight"].norm().hypot(before["fc.bias"].norm())
    assert inspection["fc"].update_ratio == pytest.approx(whole.item(), rel=1e-5)


def test_without_an_update_there_are_no_ratios():
    model, batch = ConvNet(), images()
    assert {layer.update_ratio for layer in looked_at(model, batch).layers} == {None}


def test_an_update_that_fails_is_a_note():
    model, batch = ConvNet(), images()

    def apply():
        raise RuntimeError("no state")

    inspection = looked_at(model, batch, apply=apply)
    assert inspection.notes == ("the update failed: RuntimeError: no state",)
    assert inspection["fc"].update_ratio is None and inspection["fc"].gradient_norm > 0


def test_a_module_called_twice_shows_its_last_call():
    model, batch = ConvNet(), images()
    layer = looked_at(model, batch)["relu"]
    assert (layer.calls, layer.shape) == (2, (6, 6, 8, 8))


@pytest.mark.parametrize(
    ("name", "flag"),
    [("unused", "no gradient"), ("norm", "frozen"), ("relu", "dead"), ("conv1", "zero gradient")],
)
def test_what_is_remarkable_is_flagged(name, flag):
    model, batch = ConvNet(), images()
    model.norm.requires_grad_(False)
    with torch.no_grad():
        model.conv2.bias.fill_(-1e6)
    inspection = looked_at(model, batch)
    assert inspection[name].flags == (flag,)
    assert inspection["fc"].flags == ()


def test_values_that_are_not_finite_are_counted_and_flagged():
    model, batch = ConvNet(), images()
    model.conv2.register_forward_hook(lambda _, __, output: output.index_fill(0, torch.tensor([2]), math.nan))
    inspection = looked_at(model, batch)
    assert inspection["conv2"].flags[0] == "NaN"
    assert inspection["conv2"].activation.nan == 6 * 8 * 8
    assert math.isnan(inspection.loss)
    assert inspection.first_non_finite.name == "conv2"


def test_gradients_are_shown_without_the_scale_of_mixed_precision():
    model, batch = ConvNet().eval(), images()
    plain = looked_at(model, batch)["fc"]
    model.zero_grad()

    def run():
        output = model(batch[0])
        loss = functional.cross_entropy(output, batch[1])
        (loss * 1024).backward()
        return ClassificationOutput(loss, output, batch[1])

    scaled = look(batch, run, model, scale=1024.0)
    assert scaled["fc"].gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-5)
    assert scaled["fc.weight"].gradient_norm == pytest.approx(plain.gradient_norm, rel=0.1)


# ------------------------------------------------------------------------------- models of all kinds


def test_tied_weights_are_one_parameter_of_two_layers():
    model = Tied()
    tokens, targets = torch.randint(0, 11, (4, 5)), torch.randint(0, 11, (4, 5))

    def run():
        logits = model(tokens).movedim(-1, 1)
        loss = functional.cross_entropy(logits, targets)
        loss.backward()
        return ClassificationOutput(loss, logits, targets)

    optimizer = torch.optim.Adam(model.parameters())
    inspection = look({"x": tokens, "y": targets}, run, model, optimizer, apply=optimizer.step)
    assert inspection["embedding"].gradient_norm == inspection["head"].gradient_norm > 0
    assert inspection["embedding"].update_ratio == inspection["head"].update_ratio > 0
    assert [row.name for row in inspection.parameters].count("head.weight") == 0
    assert inspection.memory.parameters == 4 * sum(p.numel() for p in model.parameters())
    # An attention holds weights beside its parts, and never calls the part that holds the others.
    assert inspection["encoder.self_attn"].shape == (4, 5, 8)
    assert inspection["encoder.self_attn.out_proj"].calls == 0
    assert inspection["encoder.self_attn.out_proj"].gradient_norm > 0
    assert len(inspection.samples) == 4


def test_other_outputs_than_tensors_show_their_first_floating_tensor():
    @dataclass
    class Out:
        ids: Any
        hidden: Any

    class Strange(nn.Module):
        def forward(self, x):
            return Out(torch.zeros(3, dtype=torch.long), {"h": x * 2})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.strange, self.lstm = Strange(), nn.LSTM(3, 2, batch_first=True)

        def forward(self, x):
            return self.lstm(self.strange(x).hidden["h"])[0]

    model = Net()
    x = torch.ones(2, 4, 3)
    inspection = look(x, squares(model, x), model)
    assert inspection["strange"].shape == (2, 4, 3)
    assert inspection["strange"].activation.mean == 2
    assert inspection["lstm"].shape == (2, 4, 2)


def test_sparse_gradients_are_summed_by_row():
    model = nn.Embedding(10, 3, sparse=True)
    x = torch.tensor([[1, 1, 4]])
    optimizer = torch.optim.SparseAdam(model.parameters())
    inspection = look(x, squares(model, x), model, optimizer, apply=optimizer.step)
    want = model.weight.grad.to_dense().norm().item()
    assert inspection[""].gradient_norm == pytest.approx(want, rel=1e-6)
    assert inspection["weight"].gradient_norm == pytest.approx(want, rel=1e-6)
    assert inspection["weight"].update_ratio > 0
    assert inspection.memory.gradients > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_number_formats_of_all_kinds_are_read(dtype):
    model, x = nn.Linear(3, 2, dtype=dtype), torch.ones(4, 3, dtype=dtype)

    def run():
        loss = model(x).abs().mean()
        loss.backward()
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inspection = look(x, run, model, optimizer, apply=optimizer.step)
    assert inspection.failed is None and inspection.first_non_finite is None
    assert inspection["weight"].update_ratio > 0
    assert inspection[""].gradient_norm == pytest.approx(
        math.hypot(*(p.grad.abs().double().norm().item() for p in model.parameters())), rel=1e-3
    )


def test_parameters_that_are_whole_numbers_and_layers_without_values_are_tolerated():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.Parameter(torch.arange(3), requires_grad=False)
            self.none = nn.Parameter(torch.empty(0))
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x[:0]).sum() + self.fc(x).mean()

    model = Net()
    x = torch.ones(4, 3)
    inspection = look(x, squares(model, x), model, torch.optim.SGD(model.parameters()))
    assert inspection[""].parameters == 3
    assert inspection["steps"].weight_norm is None
    assert inspection["fc"].calls == 2
    assert repr(inspection)


def test_a_compiled_model_is_seen_as_it_was_written():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(2, 3)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    inspection = look(x, squares(compiled, x), compiled)
    assert (inspection.model, inspection["0"].calls, inspection["0"].shape) == ("Sequential", 1, (2, 4))
    assert sum(hooks_of(model)) == 0


def test_a_step_that_calls_no_hook_says_so():
    model, x = nn.Linear(3, 1), torch.ones(2, 3)

    def run():
        loss = functional.linear(x, model.weight, model.bias).sum()
        loss.backward()
        return loss

    inspection = look(x, run, model)
    assert inspection["weight"].gradient_norm > 0
    assert "no module was seen running" in inspection.notes[0]
    assert "not seen" in repr(inspection)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_scripted_model_is_seen_by_its_gradients():
    model, x = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), torch.ones(2, 3)
    inspection = look(x, squares(model, x), model)
    assert inspection["0"].gradient_norm > 0
    assert "no module was seen running" in inspection.notes[0]


def test_a_layer_that_gets_its_shape_in_the_step_is_seen():
    model, x = nn.Sequential(nn.LazyLinear(2)), torch.ones(4, 3)
    inspection = look(x, squares(model, x), model)
    assert (inspection["0"].parameters, inspection["0"].shape) == (8, (4, 2))
    assert inspection["0"].gradient_norm > 0


def test_a_layer_that_never_got_its_shape_is_tolerated():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(2)), torch.ones(4, 5)
    inspection = look(x, squares(model, x), model)
    assert "mat1 and mat2" in inspection.failed
    assert inspection["0"].parameters == 8


def test_what_runs_inside_vmap_is_left_alone():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(4, 5, 3)

    def run():
        loss = torch.func.vmap(model)(x).square().mean()
        loss.backward()
        return loss

    inspection = look(x, run, model)
    assert inspection.failed is None and repr(inspection)
    assert (inspection["0"].calls, inspection["0"].shape) == (1, None)
    assert inspection["0"].gradient_norm > 0


def test_mixed_precision_is_seen_as_it_ran():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(4, 3)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        held.append(out.detach().double().numpy())
        loss = out.float().square().mean()
        loss.backward()
        return loss

    held = []
    inspection = look(x, run, model)
    assert inspection["1"].activation.mean == pytest.approx(held[0].mean(), rel=1e-12)
    assert inspection["1"].activation.std == pytest.approx(held[0].std(), rel=1e-12)


def test_recomputed_activations_and_gradients_of_gradients_work_as_without_a_look():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3, requires_grad=True)

    def run():
        out = model[2](checkpoint(model[:2], x, use_reentrant=False))
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.mean() + slope.square().sum()
        loss.backward()
        return loss

    run()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    assert look(x, run, model).failed is None
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), want, strict=True))


# ------------------------------------------------------------------------------ what is left behind


@pytest.mark.parametrize("make", [ConvNet, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
def test_the_step_gives_the_same_bits_as_without_a_look(make):
    model, batch = make(), images()
    other = copy.deepcopy(model)
    torch.manual_seed(5)
    looked_at(model, batch)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    classification(other, batch)()
    assert torch.equal(after, torch.get_rng_state())
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert (one.grad is None and two.grad is None) or torch.equal(one.grad, two.grad), name
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))


def test_an_in_place_change_that_spoils_a_gradient_is_found_as_without_a_look():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True))
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as bare:
        squares(model, x)()
    inspection = look(x, squares(model, x), model)
    assert "modified by an inplace operation" in inspection.failed
    assert bare.value is not None


def test_all_hooks_are_off_again_and_the_users_stay():
    model, batch = ConvNet(), images()
    heard = []
    model.fc.register_forward_hook(lambda *_: heard.append(1))
    before = hooks_of(model)
    looked_at(model, batch)
    assert hooks_of(model) == before
    assert heard == [1]


def test_hooks_on_a_batch_that_wants_gradients_are_off_again():
    model, x = nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)
    look(x, squares(model, x), model)
    assert not x._backward_hooks


def failing(model, batch):
    def run():
        model(batch[0])
        raise AssertionError("not reached")

    return run


def test_an_exception_is_part_of_what_is_seen():
    model, (x, y) = ConvNet(), images()
    model.fc = nn.Linear(7, 10)
    inspection = looked_at(model, (x, y))
    assert inspection.failed.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert inspection.failed.endswith("(in fc (Linear))")
    assert inspection.loss is None and inspection.samples is None
    assert inspection["conv2"].activation is not None and inspection["fc"].activation is None
    assert "no gradient" not in inspection["conv2"].flags
    assert sum(hooks_of(model)) == 0


def test_a_keyboard_interrupt_ends_the_look_and_leaves_no_hook():
    model, batch = ConvNet(), images()

    def run():
        model(batch[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(batch, run, model)
    assert sum(hooks_of(model)) == 0


def test_nothing_of_the_step_is_held():
    model, batch = ConvNet(), images()
    held = []

    def run():
        item = classification(model, batch)()
        held.append(weakref.ref(item.output))
        return item

    inspection = look(batch, run, model, torch.optim.Adam(model.parameters()))
    gc.collect()
    assert held[0]() is None
    tensors = [one for one in gc.get_referents(*_everything(inspection)) if isinstance(one, torch.Tensor)]
    assert tensors == []
    assert len(pickle.dumps(inspection)) < 100_000


def _everything(inspection):
    found, waiting = [], [inspection]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, type) and not any(one is known for known in found):
            found.append(one)
            waiting += gc.get_referents(one)
    return found


def test_it_cannot_be_changed():
    model, batch = ConvNet(), images()
    inspection = looked_at(model, batch)
    with pytest.raises(FrozenInstanceError):
        inspection.loss = 0.0


def test_to_look_takes_no_display_and_no_pandas():
    code = "import sys; import notebook_learner.inspection; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded & {"matplotlib", "IPython", "pandas", "h5py", "PIL", "rich", "ipywidgets"} == set()


# ------------------------------------------------------------------------- optimizer, memory, access


def test_the_optimizers_state_is_sized_key_by_key():
    model, batch = ConvNet(), images()
    optimizer = torch.optim.Adam(
        [{"params": model.conv1.parameters(), "lr": 0.5}, {"params": model.fc.parameters()}],
        lr=torch.tensor(0.25),
    )
    for _ in range(3):
        classification(model, batch)()
        optimizer.step()
    first, second = looked_at(model, batch, optimizer).optimizer
    assert (first.options["lr"], second.options["lr"], second.options["betas"]) == (0.5, 0.25, (0.9, 0.999))
    assert (first.tensors, first.elements, first.steps) == (2, 40, 3)
    averages = torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in model.fc.parameters()]).abs()
    state = {one.key: one for one in second.state}
    assert state["exp_avg"].mean == pytest.approx(averages.mean().item(), rel=1e-5)
    assert state["exp_avg"].max == pytest.approx(averages.max().item())
    assert list(state) == ["exp_avg", "exp_avg_sq"]


def test_without_an_optimizer_there_are_no_groups():
    model, batch = ConvNet(), images()
    assert looked_at(model, batch).optimizer == ()


def test_memory_counts_each_byte_once():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    x = torch.ones(10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    squares(model, x)()
    optimizer.step()
    memory = look((x, x[:5]), squares(model, x), model, optimizer).memory
    assert memory.parameters == memory.gradients == memory.optimizer == 4 * (32 + 8 + 8)
    assert memory.batch == 160
    # Tanh keeps its output, which the last layer keeps too; the square keeps its input.
    assert memory.activations == 4 * (80 + 10)
    assert memory.buffers == 0 and memory.allocated is None
    assert memory.total == 3 * 192 + 160 + 360


def test_a_batch_that_is_a_slice_counts_only_itself():
    data = torch.ones(1000, 4)
    model = nn.Linear(4, 1)
    assert look(data[:10], squares(model, data[:10]), model).memory.batch == 160


def test_rows_are_found_by_name():
    model, batch = ConvNet(), images()
    inspection = looked_at(model, batch)
    assert inspection["fc"].name == "fc"
    with pytest.raises(KeyError, match="no layer or parameter is called 'fc9'; the layers are conv1, norm"):
        inspection["fc9"]


def test_it_becomes_a_dict_that_json_takes():
    model, batch = ConvNet(), images()
    optimizer = torch.optim.Adam(model.parameters())
    inspection = looked_at(model, batch, optimizer, apply=optimizer.step, times={"data": 0.1}, place="here")
    back = json.loads(json.dumps(inspection.to_dict()))
    assert (back["place"], back["loss"], back["times"]) == ("here", inspection.loss, {"data": 0.1})
    assert back["layers"][0]["activation"]["mean"] == inspection.layers[0].activation.mean
    assert back["batch"][1]["classes"]["3"] == 1
    assert back["thumbnails"][0]["uri"].startswith("data:image/png;base64,")


def test_layers_become_a_frame():
    model, batch = ConvNet(), images()
    inspection = looked_at(model, batch)
    frame = inspection.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == [layer.name for layer in inspection.layers]
    assert frame.loc["fc", "gradient_norm"] == inspection["fc"].gradient_norm
    assert frame.loc["unused", "flags"] == "no gradient"
    assert isinstance(inspection, Inspection)


def test_pictures_that_a_step_made_are_shown_beside_those_of_its_batch():
    model = nn.ConvTranspose2d(1, 1, 4, 2, 1)
    batch = torch.rand(5, 1, 4, 4)

    def run():
        output = model(batch)
        output.mean().backward()
        return {"loss": output.mean(), "output": output}

    inspection = look(batch, run, model)
    assert [one.path for one in inspection.thumbnails] == ["", "output"]
    assert 'title="the first 5 of output"' in inspection._repr_html_()
    plain = look(batch, lambda: {"loss": model(batch).mean()}, model)
    assert [one.path for one in plain.thumbnails] == [""]

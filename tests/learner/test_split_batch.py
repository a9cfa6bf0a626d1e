"""`learner.split_batch(n)`: each batch in parts, and the numbers are those of the whole batch."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from branching_support import STEPS, learner_in, walked, weights
from builder_support import (
    Tape,
    adam,
    assert_same_bits,
    batches,
    classifier,
    net,
    plain,
    quiet,
    sgd,
    with_own_gradients,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlamaConfig, LlamaForCausalLM

from notebook_learner import Artifacts, SequenceOutput, StepError
from notebook_learner.data.rank_share import parts_of
from notebook_learner.metric import Accuracy, GradNorm, Loss
from notebook_learner.step.step import Pieces

UNEQUAL = (8, 8, 5, 1)


def in_parts(model, optimizer, data, parts, *, epochs=1, window=1, before=lambda: None, after=lambda: None):
    """The loop that everybody writes who has no memory for the batch."""
    for _ in range(epochs):
        for number, (x, y) in enumerate(data):
            if number % window == 0:
                optimizer.zero_grad()
                total, first = 0.0, -(-len(x) // min(parts, len(x)))
            for x_i, y_i in zip(x.tensor_split(parts), y.tensor_split(parts), strict=True):
                if len(x_i):
                    (F.cross_entropy(model(x_i), y_i) * (len(x_i) / first)).backward()
                    total += len(x_i) / first
            if (number + 1) % window == 0 or number + 1 == len(data):
                torch._foreach_div_([p.grad for p in model.parameters()], total)
                before()
                optimizer.step()
                after()
    return model


# The same numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 8, 100])
def test_a_training_in_parts_is_the_loop_by_hand_to_the_bit(parts, tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).num_epochs(2).build(model, adam(model), None, batches(UNEQUAL))
    learner.split_batch(parts)
    learner.fit()
    assert_same_bits(model, in_parts(expected, adam(expected), batches(UNEQUAL), parts, epochs=2))


def test_clipping_average_and_windows_see_the_gradient_of_whole_batches(tmp_path):
    model, expected = net(), net()
    builder = classifier(tmp_path).num_epochs(2).clip_gradients(norm=0.1).ema(0.9).grads_accumulation(2)
    learner = builder.build(model, adam(model), None, batches(UNEQUAL))
    learner.split_batch(2)
    learner.fit()
    average = AveragedModel(expected, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    in_parts(
        expected,
        adam(expected),
        batches(UNEQUAL),
        2,
        epochs=2,
        window=2,
        before=lambda: nn.utils.clip_grad_norm_(expected.parameters(), 0.1),
        after=lambda: average.update_parameters(expected),
    )
    assert_same_bits(model, expected)
    assert_same_bits(learner.ema_model, average.module)


def test_half_precision_is_cast_in_each_part(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).precision("bf16").build(model, sgd(model), None, batches(UNEQUAL))
    learner.split_batch(2)
    learner.fit()
    optimizer = sgd(expected)
    for x, y in batches(UNEQUAL):
        optimizer.zero_grad()
        total, first = 0.0, (len(x) + 1) // 2
        for x_i, y_i in zip(x.split(first), y.split(first), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(expected(x_i), y_i)
            (loss * (len(x_i) / first)).backward()
            total += len(x_i) / first
        torch._foreach_div_([p.grad for p in expected.parameters()], total)
        optimizer.step()
    assert_same_bits(model, expected)


def with_a_dict(model, batch):
    item = plain(model, batch)
    return {"loss": item.loss, "output": item.output, "targets": item.targets, "epoch": 3}


def with_nothing_but_a_loss(model, batch):
    return plain(model, batch).loss


STEPS_OF_ALL_KINDS = [plain, with_own_gradients, with_a_dict, with_nothing_but_a_loss]


@pytest.mark.parametrize("step", STEPS_OF_ALL_KINDS)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), parts=st.integers(1, 5), turn=st.integers(0, 3)
)
def test_parts_of_any_size_give_the_training_in_whole_batches_to_rounding(
    step, sizes, parts, turn, tmp_path_factory
):
    data = batches(sizes, dtype=torch.float64)
    trained = []
    for count in (1, parts):
        model = net(dtype=torch.float64)
        builder = quiet(tmp_path_factory.mktemp("run")).train_step(step).metrics(Loss())
        learner = builder.build(model, sgd(model), None, data)
        learner.step(min(turn, len(data) - 1)) if turn and len(data) > 1 else None
        learner.split_batch(count)
        learner.fit()
        trained.append((learner.history["train", "Loss"], [*model.parameters()]))
    (losses, whole), (mine, split) = trained
    assert np.allclose(losses, mine, rtol=1e-12)
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_metrics_see_the_whole_batch(tmp_path):
    found = []
    for parts in (1, 3):
        model = net(dtype=torch.float64)
        builder = classifier(tmp_path / str(parts)).metrics(Loss(), Accuracy())
        builder = builder.metric_train_numeric(GradNorm())
        data = batches(UNEQUAL, dtype=torch.float64), batches((7, 2), dtype=torch.float64, seed=5)
        learner = builder.build(model, sgd(model), None, *data)
        learner.split_batch(parts)
        learner.fit()
        assert learner.evaluate(data[1])["Loss"] == pytest.approx(learner.history.final("Loss", "valid"))
        named = [("train", "Loss"), ("train", "Accuracy"), ("train", "Gradient Norm"), ("valid", "Loss")]
        found.append([learner.history[each] for each in [*named, ("valid", "Accuracy")]])
    for whole, split in zip(*found, strict=True):
        assert np.allclose(whole, split, rtol=1e-10)


def test_a_loss_of_tokens_counts_by_tokens(tmp_path):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(4, 5, 6, generator=source, dtype=torch.float64)
    y = torch.randint(0, 3, (4, 5), generator=source)
    y[0, 1:] = -100  # the first part has few tokens

    def step(model, batch):
        logits = model(batch[0])
        return SequenceOutput(F.cross_entropy(logits.flatten(0, 1), batch[1].flatten()), logits, batch[1])

    models = []
    for parts in (1, 2):
        models.append(net(dtype=torch.float64))
        builder = quiet(tmp_path / str(parts)).train_step(step)
        learner = builder.build(models[-1], sgd(models[-1]), None, [(x, y)])
        learner.split_batch(parts)
        learner.fit()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_what_a_step_logs_is_the_mean_over_the_samples(tmp_path):
    model = net()

    def step(model, batch):
        learner.log("size", len(batch[0]))
        learner.log("first", batch[0].mean())
        return plain(model, batch)

    learner = quiet(tmp_path).train_step(step).build(model, sgd(model), None, batches((5, 1)))
    learner.split_batch(2)
    learner.fit()
    assert learner.history["train", "size"].tolist() == [pytest.approx((3 * 3 + 2 * 2) / 5), 1]
    assert learner.history["train", "first"].tolist() == pytest.approx(
        [x.mean().item() for x, _ in batches((5, 1))], rel=1e-5
    )


# A change by hand ------------------------------------------------------------------------------------


def test_it_counts_from_the_next_batch_on_and_one_goes_back_to_whole_batches(tmp_path):
    sizes = []

    def step(model, batch):
        sizes.append(len(batch[0]))
        return plain(model, batch)

    model = net()
    learner = quiet(tmp_path).train_step(step).build(model, sgd(model), None, batches((8,) * 3))
    learner.step()
    learner.split_batch(2)
    learner.step()
    learner.split_batch(1)
    learner.step()
    assert sizes == [8, 4, 4, 8]


def test_a_rewind_goes_back_over_it_and_makes_it_again_at_its_step(tmp_path):
    model = net()
    learner = classifier(tmp_path).keyframes(every=100).build(model, adam(model), None, batches((7,) * 8))
    seen = []
    for number in range(8):
        if number in (3, 6):
            learner.split_batch(2 if number == 3 else 1)
        learner.step()
        seen.append(model[0].weight.clone())
    learner._replica.timeline.keyframes = learner._replica.timeline.keyframes[:1]  # all steps again
    assert learner.rewind(1).exact and torch.equal(model[0].weight, seen[6])
    assert learner.rewind(2).exact and torch.equal(model[0].weight, seen[4])
    learner.step()
    assert torch.equal(model[0].weight, seen[5]), "it is in force where the run stands"
    assert learner.rewind(5).exact and torch.equal(model[0].weight, seen[0])
    learner.step(2)
    assert torch.equal(model[0].weight, seen[2])


def test_an_edited_run_is_reached_at_any_step_from_a_new_kernel(tmp_path):
    edits = {5: lambda learner: learner.split_batch(3), 17: lambda learner: learner.split_batch(1)}
    learner = learner_in(tmp_path / "run")
    seen = walked(learner, edits)
    learner.fit()
    for at in (4, 5, 6, 16, 18, 31):
        copy = tmp_path / f"copy {at}"
        shutil.copytree(tmp_path / "run", copy)
        other = learner_in(copy, at=at)
        assert other.position.iteration == at
        assert torch.equal(weights(other), seen[at]), at
    assert len(learner.history) == 4 * STEPS


def test_a_checkpoint_has_it_and_another_learner_goes_on_with_it(tmp_path):
    straight, model, other = net(), net(), net()
    data = batches((7,) * 6)

    def build(directory, model):
        return (
            classifier(directory).with_file_checkpointer().num_epochs(2).build(model, adam(model), None, data)
        )

    for each, directory in ((straight, "straight"), (model, "run")):
        learner = build(tmp_path / directory, each)
        learner.step(2)
        learner.split_batch(2)
        learner.step(2)
        label = learner.save()
        if each is straight:
            learner.fit()
    learner = classifier(tmp_path / "run").with_file_checkpointer().num_epochs(2).resume()
    learner = learner.build(other, adam(other), None, data)
    assert label and learner.position.iteration == 4
    learner.fit()
    assert_same_bits(other, straight)


def test_it_is_a_mark_in_the_history_and_a_change_in_the_recipe(tmp_path):
    model, tape = net(), Tape()
    learner = classifier(tmp_path).renderer(tape).build(model, sgd(model), None, batches())
    learner.step(2)
    learner.split_batch(2)
    learner.fit()
    told = [each.text for each in tape.events if getattr(each, "kind", "") == "edited"]
    assert told == ["split_batch(2)"]
    (change,) = Artifacts(tmp_path).recipe["changes"]
    assert (change["text"], change["changed"]) == ("split_batch(2)", {"split_batch": [1, 2]})


def test_after_an_error_in_the_first_step_the_whole_run_is_reached_in_parts(tmp_path):
    learner = learner_in(tmp_path / "run", epochs=2)
    layer = learner.model[2]
    layer.forward = lambda x: layer.no_memory
    with pytest.raises(AttributeError, match="no_memory"):
        learner.fit()
    del layer.forward
    learner.split_batch(2)
    learner.split_batch(4)  # of several changes at one place it is the last
    seen = walked(learner, steps=2 * STEPS)
    learner.fit()
    for at in (0, 1, 2 * STEPS - 1):
        shutil.copytree(tmp_path / "run", copy := tmp_path / f"copy {at}")
        other = learner_in(copy, epochs=2, at=at)
        assert torch.equal(weights(other), seen[at]), at
    other.fit()
    assert torch.equal(weights(other), seen[2 * STEPS])


def test_a_new_process_and_a_trial_take_the_same_parts_again(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, adam(model), None, batches((7,) * 8))
    learner.step()
    learner.split_batch(2)
    assert learner.verify(steps=2).exact
    assert learner.what_if(2, lr=0.001) is not None
    assert learner._replica.loop.update.split == 2
    learner.step(3)
    assert learner.rewind(2).exact


def test_batch_norm_is_named_once_since_it_measures_each_part(tmp_path):
    tape = Tape()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    learner = classifier(tmp_path).renderer(tape).build(model, sgd(model), None, batches((8, 8)))
    learner.split_batch(2)
    learner.step()
    learner.split_batch(4)
    told = [each.text for each in tape.events if "BatchNorm" in getattr(each, "text", "")]
    assert len(told) == 1 and told[0].startswith("split_batch(2): BatchNorm (1) takes the mean and variance")


# With others -----------------------------------------------------------------------------------------


def test_a_model_of_transformers_gives_metrics_its_logits_and_keeps_no_cache(tmp_path):
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (4, 5), generator=source)
    losses = []
    for parts in (1, 2):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        builder = quiet(tmp_path / str(parts)).train_step(lambda model, batch: model(**batch)).metrics(Loss())
        learner = builder.build(model, sgd(model), None, [{"input_ids": tokens, "labels": tokens}] * 2)
        learner.split_batch(parts)
        learner.fit()
        assert learner.output.logits.shape == (4, 5, 11)
        losses.append(learner.history["train", "Loss"])
    assert learner.output.past_key_values is None
    assert np.allclose(*losses, rtol=1e-5)


def test_half_precision_with_scaled_losses_is_the_same_training(tmp_path):
    models = []
    for parts in (1, 2):
        models.append(net())
        builder = classifier(tmp_path / str(parts)).precision("fp16")
        learner = builder.build(models[-1], sgd(models[-1]), None, batches(UNEQUAL * 3))
        learner.split_batch(parts)
        learner.fit()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# Refused by name -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_only_a_whole_number_of_parts_is_taken(wrong, tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd(model), None, batches())
    with pytest.raises(ValueError, match=r"split_batch\(.*\): give a whole number of parts"):
        learner.split_batch(wrong)


def test_a_step_that_drives_itself_is_refused_before_and_after_it_is_known(tmp_path):
    model = net()
    optimizer = sgd(model)

    def step(model, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = [parameter.clone() for parameter in model.parameters()]
    learner = quiet(tmp_path).train_step(step).build(model, optimizer, None, batches())
    learner.split_batch(2)  # nobody knows yet what the step does
    with pytest.raises(StepError, match=r"calls optimizer.step\(\) itself.* split_batch\(2\)"):
        learner.step()
    assert all(map(torch.equal, before, model.parameters())) and learner.position.iteration == 0
    learner.split_batch(1)
    learner.step()
    with pytest.raises(StepError, match=r"calls optimizer.step\(\) itself.* split_batch\(2\)"):
        learner.split_batch(2)


class Graph:
    def to(self, device):
        return self


REFUSED = {
    "and batch[0] has 4 and batch[1] has 3": (torch.zeros(4, 2), torch.zeros(3)),
    "batch['x'] has 4 and batch['names'] has 2": {"x": torch.zeros(4), "names": ["a", "b"]},
    "batch[1] is a tensor without rows": (torch.zeros(4, 2), torch.tensor(1.0)),
    "it is a NoneType without any": None,
    "batch is a PackedSequence": pack_sequence([torch.ones(3), torch.ones(2)]),
    "batch[0] is a Graph": (Graph(), torch.zeros(4)),
    "batch is a tensor without rows": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_batch_that_cannot_be_cut_is_refused_by_name(said):
    with pytest.raises(StepError, match=r"split_batch\(2\)") as caught:
        parts_of(REFUSED[said], 2)
    assert said in str(caught.value)
    assert "learner.split_batch(1)" in str(caught.value)


def test_a_refused_batch_is_a_pause_and_whole_batches_go_on(tmp_path):
    model = net()

    def step(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"])

    data = [{"x": x, "y": y, "scale": torch.tensor(1.0)} for x, y in batches()]
    learner = quiet(tmp_path).train_step(step).build(model, sgd(model), None, data)
    learner.split_batch(2)
    with pytest.raises(StepError, match=r"batch\['scale'\]"):
        learner.fit()
    with pytest.raises(StepError, match=r"batch\['scale'\]"):
        learner.split_batch(3)  # the batch at hand is known by now
    learner.split_batch(1)
    learner.fit()
    assert learner.status == "finished"


# Batches and outputs ---------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x, y")


@dataclass
class Sample:
    x: torch.Tensor
    names: list


@given(size=st.integers(1, 12), count=st.integers(1, 6))
def test_parts_joined_are_the_batch_again_in_containers_of_the_same_types(size, count):
    x = torch.arange(size * 2).reshape(size, 2)
    names = [f"name {number}" for number in range(size)]
    batch = {"pair": Pair(x, x.numpy()), "sample": Sample(x, names), "list": [x, "constant", 3, None]}
    parts = parts_of(batch, count)
    assert sum(rows for _, rows in parts) == size and len(parts) == min(size, count)
    assert max(rows for _, rows in parts) - min(rows for _, rows in parts) <= 1
    for part, rows in parts:
        assert type(part["pair"]) is Pair and type(part["sample"]) is Sample
        assert len(part["pair"].x) == len(part["pair"].y) == len(part["sample"].names) == rows
        assert part["list"][1:] == ["constant", 3, None]
    assert torch.equal(torch.cat([part["sample"].x for part, _ in parts]), x)
    assert [name for part, _ in parts for name in part["sample"].names] == names


def test_outputs_of_parts_become_that_of_the_batch_and_what_is_neither_rows_nor_number_is_none():
    pieces = Pieces(torch.arange(6.0), 2)
    for part in pieces:
        pieces.took(
            SimpleNamespace(
                loss=part.mean(),
                output=part * 2,
                tokens=part.repeat(2),
                pair=(part, {"deep": part}),
                weight=2 * len(part),
                kind="same",
                other=object(),
                matrix=torch.zeros(2, 2)[: 1 + len(part) % 2, :],
            ),
            part,
        )
    whole = pieces.joined()
    assert whole.loss == 2.5 and whole.weight == 12 and whole.kind == "same"
    assert torch.equal(whole.output, torch.arange(6.0) * 2) and len(whole.tokens) == 12
    assert torch.equal(whole.pair[1]["deep"], torch.arange(6.0))
    assert whole.other is None and whole.matrix is None

"""A checkpoint may hold what trains alone: the rest is named by its source and its digests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.artifacts.weights import with_base
from notebook_learner.checkpoint import Hdf5Recorder, SafetensorsRecorder
from notebook_learner.errors import ConfigurationError, DamagedError, StateError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, as it loads
    from peft import LoraConfig, get_peft_model

SOURCE = "big-model-v2"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh())
        self.head = nn.Linear(300, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    model = Net()
    model.base.requires_grad_(False)
    return model


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 4, generator=generator), torch.randn(24, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)


def unfreeze(learner: Any) -> None:
    first = learner.model.base[0].requires_grad_(True)
    learner.optimizer.add_param_group({"params": first.parameters()})


def learner_of(directory: Path, *, recorder: Any = None, resume: bool = False, seed: int = 0) -> Any:
    model = net(seed)
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(3).renderer("silent")
    builder = builder.with_file_checkpointer(recorder, base=SOURCE).reshapes(unfreeze)
    if resume:
        builder = builder.resume()
    torch.manual_seed(7)
    return builder.build(model, torch.optim.Adam(model.head.parameters(), lr=0.01), None, data())


def bits(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def sizes(directory: Path) -> list[int]:
    return [file.stat().st_size for file in (directory / "checkpoint").glob("model*")]


recorders = pytest.mark.parametrize(
    "recorder",
    [Hdf5Recorder, SafetensorsRecorder],
    ids=lambda each: each.__name__,
)


@recorders
def test_a_checkpoint_holds_the_head_alone_and_a_run_goes_on_from_it(
    recorder: Callable[[], Any], tmp_path: Path
) -> None:
    expected = learner_of(tmp_path / "straight")
    expected.fit()
    learner = learner_of(tmp_path / "run", recorder=recorder())
    learner.step(8)
    learner.save()
    del learner
    base = sum(each.nbytes for each in net().base.parameters())
    assert max(sizes(tmp_path / "run")) < base / 10
    again = learner_of(tmp_path / "run", recorder=recorder(), resume=True)
    assert again.position.iteration == 8
    again.fit()
    assert same(bits(again.model), bits(expected.model))
    assert set(Artifacts(tmp_path / "run").state_dict("latest")) == {"head.weight", "head.bias"}


def test_another_base_is_refused_by_name(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    learner.fit()
    del learner
    with pytest.raises(ConfigurationError, match=rf"'{SOURCE}'; this model has other values for 4 of them"):
        learner_of(tmp_path, resume=True, seed=3)


def test_weights_that_were_unfrozen_are_kept_once_they_differ(tmp_path: Path) -> None:
    expected = learner_of(tmp_path / "straight")
    expected.step(5)
    expected.reshape(unfreeze)
    expected.fit()
    learner = learner_of(tmp_path / "run")
    learner.step(5)
    learner.reshape(unfreeze)
    learner.step(3)
    learner.save()
    del learner
    again = learner_of(tmp_path / "run", resume=True)
    again.fit()
    assert same(bits(again.model), bits(expected.model))
    saved = Artifacts(tmp_path / "run").state_dict("latest")
    assert "base.0.weight" in saved and "base.2.weight" not in saved


def test_a_checkpoint_of_before_needs_the_base_of_before(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    learner.step(3)
    label = learner.save()
    learner.reshape(unfreeze)
    learner.step(3)
    before = bits(learner.model)
    with pytest.raises(StateError, match=f"Load the weights of '{SOURCE}'"):
        learner.restore(label)
    assert same(bits(learner.model), before)
    learner.rewind(4)  # a keyframe has all of it
    assert same(bits(learner.model)[:4], bits(net())[:4])


def test_weights_are_loaded_into_a_model_with_the_base(tmp_path: Path) -> None:
    learner = learner_of(tmp_path)
    learner.fit()
    trained = bits(learner.model)
    model = Artifacts(tmp_path).load_model(net(), "latest")
    assert same(bits(model), trained)
    with pytest.raises(StateError, match="this model has other values"):
        Artifacts(tmp_path).load_model(net(5), "latest")


def test_a_fork_leaves_the_base_out_too(tmp_path: Path) -> None:
    learner = learner_of(tmp_path / "run")
    learner.step(4)
    child = learner.fork(tmp_path / "child")
    child.fit()
    learner.fit()
    assert same(bits(child.model), bits(learner.model))
    del learner
    assert same(bits(Artifacts(tmp_path / "run").load_model(net(), "latest")), bits(child.model))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's, of transformers
def test_a_model_of_peft_is_kept_as_its_adapters(tmp_path: Path) -> None:
    def build(resume: bool = False) -> Any:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=3,
        )
        lora = LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
        model = get_peft_model(BertForSequenceClassification(config), lora)
        builder = LearnerBuilder(tmp_path).num_epochs(2).renderer("silent")
        builder = builder.with_file_checkpointer(base="a config and seed 0")
        trained = [each for each in model.parameters() if each.requires_grad]
        torch.manual_seed(1)
        loader = DataLoader(rows, batch_size=8, shuffle=True)  # type: ignore[arg-type, var-annotated]
        return (builder.resume() if resume else builder).build(
            model, torch.optim.AdamW(trained, lr=0.01), None, loader
        )

    draws = torch.Generator().manual_seed(0)
    rows = [
        {
            "input_ids": torch.randint(0, 50, (8,), generator=draws),
            "labels": torch.randint(0, 3, (), generator=draws),
        }
        for _ in range(40)
    ]
    by_hand = build().model
    optimizer = torch.optim.AdamW([each for each in by_hand.parameters() if each.requires_grad], lr=0.01)
    torch.manual_seed(1)
    by_hand.train()
    for _ in range(2):
        for batch in DataLoader(rows, batch_size=8, shuffle=True):  # type: ignore[arg-type, var-annotated]
            optimizer.zero_grad()
            by_hand(**batch).loss.backward()
            optimizer.step()
    learner = build()
    learner.step(3)
    learner.rewind(2)
    learner.step(4)
    learner.save()
    del learner
    again = build(resume=True)
    again.fit()
    assert same(bits(again.model), bits(by_hand))
    kept = Artifacts(tmp_path).state_dict("latest")
    own = ("lora_", "classifier", "position_ids", "token_type_ids")  # the last two are buffers
    assert all(any(part in name for part in own) for name in kept)


@pytest.mark.parametrize(
    ("base", "said"), [("", "give a text"), (3, "give a text"), ("x", "all weights train")]
)
def test_a_base_that_says_nothing_is_refused(base: Any, said: str, tmp_path: Path) -> None:
    model = Net()
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).with_file_checkpointer(base=base)
    with pytest.raises(ConfigurationError, match=said):
        builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))


plain = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(plain | st.fixed_dictionaries({"source": plain, "tensors": plain}))
@settings(max_examples=100, deadline=None)
def test_a_base_in_a_hostile_file_is_refused_or_read(base: Any) -> None:
    value = {"tensors": {}, "extra": {}, "base": base}
    try:
        found = with_base(value, "1", nn.Linear(1, 1))
    except (DamagedError, StateError):
        return
    assert base["tensors"] == {} and found["tensors"] == {}

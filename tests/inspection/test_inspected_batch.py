"""Batches of every shape: their tensors, classes, texts and pictures."""

from __future__ import annotations

import io
import math
from collections import UserDict, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from notebook_learner.inspection import look, trace_non_finite
from notebook_learner.inspection.batch import describe_batch, tensors_in

Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    x: Any
    y: Any = None


def paths(value):
    return [path for path, _ in tensors_in(value)]


@pytest.mark.parametrize(
    ("batch", "want"),
    [
        (torch.ones(1), [""]),
        ((torch.ones(1), [torch.ones(1)]), ["[0]", "[1][0]"]),
        ({"input_ids": torch.ones(1), 3: torch.ones(1)}, ["['input_ids']", "[3]"]),
        (Pair(torch.ones(1), torch.ones(1)), [".x", ".y"]),
        (Record(torch.ones(1), {"a": torch.ones(1)}), [".x", ".y['a']"]),
        (SimpleNamespace(x=torch.ones(1)), [".x"]),
        (UserDict(x=torch.ones(1)), ["['x']"]),
        (deque([torch.ones(1)]), ["[0]"]),
        (None, []),
        ("text", []),
    ],
)
def test_paths_are_written_as_python_reaches_them(batch, want):
    assert paths(batch) == want


def test_a_value_that_holds_itself_ends():
    batch = [torch.ones(1)]
    batch.append(batch)
    assert paths(batch) == ["[0]"]


def test_a_value_nested_beyond_python_ends():
    batch: Any = torch.ones(1)
    for _ in range(5000):
        batch = [batch]
    assert paths(batch) == []


def test_a_row_says_shape_type_and_range():
    batch = {"x": torch.tensor([[1.0, math.nan], [3.0, math.inf]]), "y": torch.tensor([2, 0, 2])}
    (x, y), _ = describe_batch(batch)
    assert (x.path, x.shape, x.dtype, x.device) == ("['x']", (2, 2), "float32", "cpu")
    assert (x.statistics.min, x.statistics.max, x.statistics.mean, x.statistics.std) == (1, 3, 2, 1)
    assert (x.statistics.nan, x.statistics.inf, x.classes) == (1, 1, None)
    assert y.classes == {0: 1, 2: 2}


def test_more_than_a_thousand_values_are_no_classes():
    (row,), _ = describe_batch(torch.arange(1001))
    assert row.classes is None
    (row,), _ = describe_batch(torch.arange(1000))
    assert len(row.classes) == 1000


class Words:
    def decode(self, tokens):
        return " ".join(f"w{token}" for token in tokens)


@pytest.mark.parametrize("tokenizer", [Words(), Words().decode])
def test_tokens_are_decoded_and_padding_is_left_out(tokenizer):
    batch = {"input_ids": torch.tensor([[1, 2], [3, -100]]), "attention_mask": torch.ones(2, 2).long()}
    rows, _ = describe_batch(batch, tokenizer)
    assert [row.texts for row in rows] == [("w1 w2", "w3"), ()]


def test_a_tokenizer_that_fails_costs_only_its_text():
    def decode(tokens):
        raise ValueError("no such token")

    (row,), _ = describe_batch(torch.tensor([[1, 2]]), decode)
    assert (row.texts, row.shape) == ((), (1, 2))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_shown_as_they_are(channels):
    x = torch.zeros(10, channels, 8, 12)
    x[1] = 1.0
    x[2, :, 3, 4] = math.nan
    _, (picture,) = describe_batch((x, torch.arange(10)))
    with Image.open(io.BytesIO(picture.png)) as image:
        pixels = image.convert("RGBA")
    assert (picture.path, picture.count) == ("[0]", 8)
    assert pixels.size == (picture.width, picture.height) == (8 * 14 - 2, 8)
    assert pixels.getpixel((0, 0)) == (0, 0, 0, 255)
    assert pixels.getpixel((14, 0)) == (255, 255, 255, 255)
    assert pixels.getpixel((28 + 4, 3)) == (255, 0, 80, 255)
    assert pixels.getpixel((12, 0))[3] == 0  # the gap


def test_bytes_keep_their_brightness_and_large_images_are_made_small():
    _, (picture,) = describe_batch(torch.full((2, 3, 400, 300), 100, dtype=torch.uint8))
    with Image.open(io.BytesIO(picture.png)) as image:
        assert image.getpixel((0, 0)) == (100, 100, 100, 255)
        assert image.size[1] <= 96
    assert len(picture.png) < 20_000


@pytest.mark.parametrize(
    "shape",
    [(4, 10), (4, 5, 8, 8), (4, 20, 768), (4, 3, 2, 2), (0, 3, 8, 8), (2, 1, 4, 5000), (2, 1, 5000, 900)],
)
def test_other_tensors_have_no_picture(shape):
    assert describe_batch(torch.zeros(shape))[1] == ()


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_ragged_tensor_has_a_row(layout):
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
    (row,), pictures = describe_batch(ragged)
    assert (row.shape, row.dtype, pictures) == ((2, -1, -1), "float32", ())


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)
WHOLE = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32)


@st.composite
def any_tensor(draw):
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    dtype = draw(st.sampled_from((*FLOATS, *WHOLE)))
    kind = draw(st.sampled_from(("plain", "nan", "inf", "sparse", "meta", "transposed")))
    tensor = torch.zeros(shape)
    if kind in ("nan", "inf") and dtype in FLOATS and tensor.numel():
        tensor.reshape(-1)[0] = float(kind)
    tensor = tensor.to(dtype)
    if kind == "sparse" and dtype in FLOATS and shape:
        return tensor.to_sparse()
    if kind == "transposed" and len(shape) > 1:
        return tensor.transpose(0, 1)
    return tensor.to("meta") if kind == "meta" else tensor


LEAVES = st.one_of(
    any_tensor(), st.none(), st.text(max_size=5), st.integers(), st.floats(), st.just(object()), st.just(len)
)
BATCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3),
        st.builds(Record, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(SimpleNamespace, thing=inner),
    ),
    max_leaves=8,
)


@given(batch=BATCHES, output=BATCHES, tokenizer=st.sampled_from((None, Words(), len)))
def test_no_batch_and_no_output_makes_a_look_fail(batch, output, tokenizer):
    model = nn.Linear(2, 1)

    def run():
        loss = model(torch.ones(3, 2)).sum()
        loss.backward()
        return SimpleNamespace(loss=loss, output=output, targets=batch)

    inspection = look(batch, run, model, tokenizer=tokenizer, loss_fn=nn.functional.mse_loss)
    assert inspection.failed is None
    assert len(inspection.batch) == len(paths(batch))
    assert inspection.samples is not None or inspection.samples_reason
    assert repr(inspection) and inspection._repr_html_() and inspection.sections() and inspection.to_dict()
    culprit = trace_non_finite(batch, run, model)
    assert culprit is None or culprit.stage == "input"

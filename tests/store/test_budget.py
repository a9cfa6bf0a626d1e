"""The weight of values is an upper bound of the memory they take, however they are shaped."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.store.budget import _MOST, SPARE, _at_most, fits, weight_of_text, weight_of_tree
from notebook_learner.store.json_text import parse
from notebook_learner.store.tree import unpack

SHAPES = [
    "[]",
    "{}",
    '{"":0}',
    "[[]]",
    "[0]",
    "1.5",
    "12345",
    '"ab"',
    "null",
    '{"$tuple":[]}',
    '{"$set":[1]}',
    '{"$frozenset":[1]}',
    '{"$counter":[[0,0]]}',
    '{"$ordered":[[0,0]]}',
    '{"$dict":[[0,0]]}',
    '{"$complex":[0,1]}',
    '{"$size":[1]}',
    '{"$tensor":0}',
    '{"$parameter":{"$tensor":0},"grad":true}',
    '{"$array":0}',
    '{"$scalar":0}',
    '{"$bytes":"YQ=="}',
    '{"$int":"0x1"}',
    '{"$device":"cpu"}',
    '{"$sparse":"coo","size":[1],"members":[{"$tensor":1},{"$tensor":0}],"coalesced":true}',
]
COUNT = 5000


def peak(text: str) -> int:
    """What it takes to make the values of a text, the tree and the value made of it."""
    tensors = [torch.zeros(1), torch.zeros(1, 1, dtype=torch.int64)]
    tracemalloc.start()
    kept = unpack(json.loads(text), tensors)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return taken


@pytest.mark.parametrize("shape", SHAPES)
def test_the_weight_is_no_less_than_the_memory(shape: str) -> None:
    text = "[" + ",".join([shape] * COUNT) + "]"
    taken = peak(text)
    assert taken <= weight_of_text(text.encode())
    assert taken <= weight_of_tree(json.loads(text))


@pytest.mark.parametrize("letter", ["\\ud83d\\ude00", "\\u4e2d", ""])
def test_one_wide_letter_makes_a_whole_text_wide(letter: str) -> None:
    text = '["' + "a" * 200_000 + letter + '"]'
    assert peak(text) <= weight_of_text(text.encode()) + len(text) + 2000  # a text alone is its own size


def test_keys_of_their_own_are_counted_with_their_map() -> None:
    text = "{" + ",".join(f'"key {index}":0' for index in range(COUNT)) + "}"
    assert peak(text) <= weight_of_text(text.encode())
    assert peak(text) <= weight_of_tree(json.loads(text))


def test_a_million_numbers_fit_whatever_the_file() -> None:
    assert fits(b"[" + b"12345," * 1_000_000 + b"0]", 0)


def test_more_values_need_a_larger_file() -> None:
    text = b"[" + b"[]," * 400_000 + b"0]"
    weight = weight_of_text(text)
    assert not fits(text, weight - SPARE - 1)
    assert fits(text, weight - SPARE)
    with pytest.raises(ValueError, match="more single values than a file of its size may"):
        parse(bytearray(text), 0)


TEXTS = st.text(st.sampled_from(list(',:"[{}]a1\\ué')), max_size=60) | st.sampled_from(SHAPES)


@given(TEXTS)
def test_the_quick_estimate_is_no_less_than_the_weight(text: str) -> None:
    long = text.encode() * (SPARE // (_MOST * max(1, len(text.encode()))) + 1)
    for data in (text.encode(), long):
        assert _at_most(data) >= weight_of_text(data)


def test_the_quick_estimate_leaves_the_answer_to_the_weight() -> None:
    for text in (b"[" + b"[]," * 400_000 + b"0]", b'{"a":"\\ud83d' + b"a" * 20_000_000 + b'"}'):
        weight = weight_of_text(text)
        assert fits(text, weight - SPARE) and not fits(text, weight - SPARE - 1)


def test_a_text_that_was_parsed_is_gone() -> None:
    text = bytearray(b"[1]")
    assert parse(text, 0) == [1]
    assert text == b""

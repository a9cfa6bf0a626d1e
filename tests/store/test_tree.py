from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from notebook_learner.errors import CheckpointError
from notebook_learner.store import tree
from notebook_learner.store.tree import DEEPEST, Malformed, pack, unpack

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=4),
    st.complex_numbers(allow_nan=False),
)
KEYS = st.one_of(
    st.sampled_from(["$tensor", "$dict", "$", ""]),
    st.text(max_size=3),
    st.integers(),
    st.booleans(),
    st.tuples(st.text()),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=15,
)
LEAF_KEYS = ["$float", "$complex", "$bytes", "$size", "$dtype", "$device", "$array", "$scalar"]
CONTAINER_KEYS = ["$tuple", "$set", "$frozenset", "$dict", "$ordered", "$counter"]
TENSOR_KEYS = ["$tensor", "order", "$parameter", "grad", "$sparse", "size", "members", "coalesced"]
QUANTIZED_KEYS = ["$quantized", "values", "scale", "zero_point", "axis"]
NODE_KEYS = LEAF_KEYS + CONTAINER_KEYS + TENSOR_KEYS + QUANTIZED_KEYS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(
            st.sampled_from(NODE_KEYS),
            inner,
            min_size=1,
            max_size=4,
        ),
    ),
    max_leaves=10,
)


def again(value: Any) -> Any:
    """A value, packed, through JSON, and unpacked."""
    packed = pack(value)
    return unpack(json.loads(json.dumps(packed.tree, allow_nan=False)), packed.tensors)


def described(value: Any) -> str:
    """A value with the types, the order and the bits of all that is in it: True is no 1, -0.0 no 0.0."""
    if isinstance(value, dict):
        return f"{type(value)}{[(described(key), described(item)) for key, item in value.items()]}"
    if isinstance(value, (list, tuple)):
        return f"{type(value)}{[described(item) for item in value]}"
    if isinstance(value, float):
        return f"{type(value)}{struct.pack('>d', value).hex()}"
    return f"{type(value)}{value!r}"


@given(VALUES)
def test_any_value_comes_back_in_type_and_order(value: Any) -> None:
    assert described(again(value)) == described(value)


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -math.inf,
        5e-324,
        complex(-0.0, math.inf),
        {1, 2},
        frozenset({(1, 2)}),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.device("cuda", 3),
        Counter({3: 2}),
        {"$tensor": 0},
        {(1, (2,)): {"$dict": []}},
        "\ud800",
        {True: 1, 2.5: 3, None: 4, b"k": 5},
    ],
    ids=repr,
)
def test_a_value_of_every_type_comes_back(value: Any) -> None:
    assert described(again(value)) == described(value)


def test_nan_comes_back() -> None:
    found = again([math.nan, complex(math.nan, 1.0)])
    assert math.isnan(found[0])
    assert math.isnan(found[1].real)
    assert found[1].imag == 1.0


@given(VALUES)
def test_what_is_packed_is_json_that_other_languages_read(value: Any) -> None:
    text = json.dumps(pack(value).tree, allow_nan=False)

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(text, parse_constant=no_constant) == pack(value).tree


def test_plain_state_stays_plain_to_read() -> None:
    assert pack({"lr": 0.1, "steps": [1, 2], "name": None}).tree == {"lr": 0.1, "steps": [1, 2], "name": None}


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<i8").reshape(2, 3),
        np.arange(6, dtype=">f4"),
        np.asfortranarray(np.ones((2, 3), dtype=np.complex64)),
        np.arange(10)[::2],
        np.zeros((2, 0), dtype=np.uint16),
        np.array(True),
    ],
    ids=["integers", "big-endian", "Fortran", "strided", "empty", "0-d"],
)
def test_arrays_come_back_in_the_order_of_this_machine(array: np.ndarray) -> None:
    found = again(array)
    assert type(found) is np.ndarray
    assert found.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(found, array)
    assert found.shape == array.shape


@pytest.mark.parametrize(
    "scalar", [np.float32(0.1), np.int64(-3), np.bool_(True), np.complex128(1j)], ids=repr
)
def test_numpy_scalars_come_back_as_scalars(scalar: np.generic) -> None:
    found = again(scalar)
    assert type(found) is type(scalar)
    assert found == scalar


def test_an_array_is_copied_and_may_change_afterwards() -> None:
    array = np.zeros(3)
    packed = pack(array)
    array[:] = 1
    assert unpack(packed.tree, packed.tensors).tolist() == [0, 0, 0]


def test_tensors_are_named_where_they_were_met_and_met_again() -> None:
    weight = torch.ones(3)
    packed = pack({"a": [weight, {5: weight}], "b": weight[1:]})
    assert packed.names == [("a", "0"), ("b",)]
    assert packed.also == [(0, ("a", "1", "5"))]
    assert packed.tensors[0].data_ptr() == weight.data_ptr()


def test_a_tensor_met_twice_is_one_again_also_in_another_order_of_dimensions() -> None:
    weight = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = again([weight, weight])
    assert found[0] is found[1]
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_tensors_that_live_briefly_are_not_taken_for_each_other() -> None:
    # each array becomes a tensor of its own while packing; an address that is free again is used again
    value = [np.full(1000, n) for n in range(50)]
    assert [int(array[0]) for array in again(value)] == list(range(50))


def test_a_parameter_is_one_again_and_knows_whether_it_trains() -> None:
    for trains in (True, False):
        found = again(nn.Parameter(torch.ones(2), requires_grad=trains))
        assert type(found) is nn.Parameter
        assert found.requires_grad is trains


class Point(NamedTuple):
    x: int


class Own(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        print,
        object(),
        Point(1),
        defaultdict(int),
        range(3),
        torch.ones(2, device="meta"),
        torch.ones(2).as_subclass(Own),
        np.array(["text"]),
        np.array([None]),
        np.float64,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_file_holds_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        pack({"groups": [1, (2, value)]}, "optim")
    assert str(caught.value).startswith("optim['groups'][1][1] is ")
    assert "use tensors" in str(caught.value)


def test_a_key_that_no_file_holds_is_refused() -> None:
    with pytest.raises(CheckpointError, match="which a checkpoint cannot hold"):
        pack({print: 1})


def test_a_value_may_be_nested_deep_but_not_contain_itself() -> None:
    value: Any = 0
    for _ in range(DEEPEST):
        value = [value]
    assert again(value) == value
    value = {1: 0}
    for _ in range(DEEPEST - 1):
        value = {1: value}
    assert again(value) == value
    value[1] = value
    with pytest.raises(CheckpointError, match=r"state\[1\].* does it contain itself"):
        pack(value)


def deep(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        {"$code": "print()"},
        {"$": 1},
        {"$float": "0.5"},
        {"$float": "infinity"},
        {"$complex": [1, 2, 3]},
        {"$bytes": "no base64!"},
        {"$bytes": 3},
        {"$tuple": 3},
        {"$tuple": "text"},
        {"$set": [[1]]},
        {"$size": ["a"]},
        {"$dict": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$tensor": 1},
        {"$tensor": -1},
        {"$tensor": True},
        {"$tensor": "0"},
        {"$tensor": 0, "order": [0, 0]},
        {"$tensor": 0, "order": [1]},
        [{"$tensor": 0, "order": [0, 1]}, {"$tensor": 0, "order": [1, 0]}],
        {"$parameter": {"$array": 0}, "grad": True},
        {"$parameter": {"$tensor": 0}},
        {"$array": 9},
        {"$scalar": None},
        {"$dtype": "float3"},
        {"$dtype": "nn"},
        {"$device": "moon"},
        {"$sparse": "coo", "size": [1, 1], "members": [{"$tensor": 0}, {"$tensor": 0}], "coalesced": True},
        {"$sparse": "csr", "size": [1 << 60], "members": [{"$tensor": 0}] * 3, "coalesced": False},
        {"$sparse": "other", "size": [], "members": [], "coalesced": False},
        deep(2 * DEEPEST + 2),
    ],
    ids=lambda tree: str(tree)[:60],
)
def test_a_tree_that_was_never_packed_is_malformed(tree: Any) -> None:
    with pytest.raises(Malformed):
        unpack(tree, [torch.ones(2, 3)])


@pytest.mark.filterwarnings("ignore:.*[qQ]uantize")
@pytest.mark.parametrize(
    "copy",
    [
        {"$quantized": "quint8", "values": {"$tensor": 0}, "scale": 1.0, "zero_point": 0},
        {"$tensor": 1, "order": [0, 2, 3, 1]},
    ],
    ids=["quantized", "in another order"],
)
def test_copies_take_no_more_than_their_room(copy: Any) -> None:
    tensors = [torch.zeros(120, dtype=torch.uint8), torch.zeros(1, 2, 3, 5)]
    unpack([copy], tensors, 240 + 120)
    with pytest.raises(Malformed, match="more copies of its tensors than its size justifies"):
        unpack([copy], tensors, 239 + 120)
    again = {"$quantized": "quint8", "values": {"$tensor": 0}, "scale": 2.0, "zero_point": 0}
    with pytest.raises(Malformed, match="more copies"):
        unpack([copy, again], tensors, 240 + 239)


def test_a_sparse_tensor_counts_each_time_that_its_numbers_are_checked() -> None:
    tensors = [torch.arange(1000).reshape(1, 1000), torch.zeros(1000)]
    node = {"$sparse": "coo", "size": [1000], "members": [{"$tensor": 0}, {"$tensor": 1}], "coalesced": True}
    unpack([node], tensors, 24_000)
    with pytest.raises(Malformed, match="more copies"):
        unpack([node, node], tensors, 24_000)


@pytest.mark.parametrize("kind", ["$set", "$frozenset", "$dict", "$ordered", "$counter"])
def test_keys_that_share_their_hash_are_refused_before_they_take_for_ever(kind: str) -> None:
    """Half a minute, were they not."""
    same = [{"$int": hex(number * ((1 << 61) - 1))} for number in range(10, 40_010)]
    assert len({hash(int(each["$int"], 16)) for each in same}) == 1
    items = same if "set" in kind else [[each, 1] for each in same]
    with pytest.raises(Malformed, match="share their hashes"):
        unpack({kind: items}, [])


def test_many_keys_of_every_kind_are_taken() -> None:
    value = {
        "numbers": set(range(-3000, 3000)),
        "long ones": {1 << (70 + number) for number in range(3000)},
        "tuples": {(number, f"{number}"): number for number in range(3000)},
        "floats": dict.fromkeys([number / 7 for number in range(3000)], 0),
    }
    packed = pack(value)
    assert unpack(packed.tree, packed.tensors) == value


@pytest.mark.filterwarnings("ignore")  # torch warns of many things that are malformed, before it refuses them
@given(JSON)
def test_any_json_gives_a_value_or_is_malformed(tree: Any) -> None:
    try:
        unpack(tree, [torch.ones(2, 3), torch.tensor([0, 1])])
    except Malformed as error:
        assert str(error)


WEIGHT = torch.ones(3)
TENSORS = st.sampled_from(
    [
        WEIGHT,
        WEIGHT.view(3, 1),
        torch.zeros(()),
        torch.arange(4),
        torch.empty(0),
        torch.ones(2).bfloat16(),
        torch.ones(2, 3).t(),
        torch.ones(2, dtype=torch.complex64).conj(),
        nn.Parameter(torch.ones(1)),
        torch.ones(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        np.arange(3),
    ]
)
STATES = st.recursive(
    LEAVES | TENSORS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3) | st.sampled_from(["$tensor", "$"]), TENSORS, max_size=5),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=15,
)


@given(STATES)
def test_the_quick_way_to_take_a_state_apart_makes_what_the_careful_one_makes(value: Any) -> None:
    quick = tree._packed_quickly(value, "state")
    careful = tree._Packer("state")
    careful.packed.tree = careful.node(value, ())
    if quick is None:
        return
    assert described(quick.tree) == described(careful.packed.tree)
    assert (quick.names, quick.also) == (careful.packed.names, careful.packed.also)
    for one, other in zip(quick.tensors, careful.packed.tensors, strict=True):
        assert one is other or torch.equal(one, other)  # an array is copied by each of them


def test_the_quick_way_is_taken_for_a_usual_state_and_left_for_any_other() -> None:
    weight = torch.ones(3)
    model = {"w": weight, "n": torch.tensor(3)}
    usual = {"model": model, "groups": [{"lr": 0.1}], "rng": np.arange(3)}
    assert tree._packed_quickly(usual, "state") is not None
    for other in (
        torch.empty(0),
        torch.ones(2, 3).t(),
        nn.Parameter(torch.ones(1)),
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.eye(2).to_sparse(),
        weight,
        torch.ones(2, device="meta"),
    ):
        assert tree._packed_quickly({**usual, "other": other}, "state") is None
        assert tree._packed_quickly({"one": usual, "two": [other]}, "state") is None


@pytest.mark.parametrize("number", [True, 1.0, -1, 2, 10**30, None, "0", [0]])
def test_a_number_of_no_tensor_among_good_ones_is_refused(number: Any) -> None:
    good = {"a": {"$tensor": 0}, "b": {"$tensor": 1}}
    tensors = [torch.ones(1), torch.ones(2)]
    assert unpack(good, tensors) == {"a": tensors[0], "b": tensors[1]}
    with pytest.raises(Malformed):
        unpack({**good, "c": {"$tensor": number}}, tensors)

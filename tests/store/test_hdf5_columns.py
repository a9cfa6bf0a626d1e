"""Columns of tensors are taken where they tell the truth, and refused with a reason where they do not."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.store.hdf5_columns import KNOWN, Extent, Listed, Wrong, listed_in

GOOD: dict[str, Any] = {
    "kinds": [["float32", [2, 3]], ["bool", []]],
    "name": ["state/0/exp_avg", "state/0/step", "state/1/exp_avg"],
    "kind": [0, 1, 0],
    "offset": [4096, 4120, 0],
    "also": [[0, "tied", "tied/too"]],
    "packed": [[2, {"codec": "gzip", "chunk": 16, "chunks": [{"offset": 600, "stored": 7}] * 2}]],
}
SIZES = st.integers(0, 1 << 64) | st.sampled_from([-1, 1 << 61, 1 << 62, True, 2.0, None, "24", [], {}])
KINDS = st.tuples(st.sampled_from([*KNOWN, "qint8", "", None]), st.lists(SIZES, max_size=4)).map(list)
COLUMNS = {
    "kinds": st.lists(KINDS | SIZES, max_size=3),
    "name": st.lists(st.sampled_from(["w", "", "\udc80", "x", None, 3, ["w"]]), max_size=3),
    "kind": st.lists(st.integers(-2, 3) | SIZES, max_size=3),
    "offset": st.lists(SIZES, max_size=3),
    "also": st.lists(st.lists(st.integers(-1, 3) | st.sampled_from(["tied", "w", None]), max_size=3)),
    "packed": st.lists(st.lists(SIZES | st.just(GOOD["packed"][0][1]), max_size=2), max_size=2),
}


def test_what_columns_say_is_what_the_entries_are() -> None:
    first, step, last = listed_in(GOOD).entries
    assert first == (
        "state/0/exp_avg",
        ("tied", "tied/too"),
        KNOWN["float32"],
        (2, 3),
        24,
        ((4096, 24),),
        "",
        0,
    )
    assert step == ("state/0/step", (), KNOWN["bool"], (), 1, ((4120, 1),), "", 0)
    assert last == (
        "state/1/exp_avg",
        (),
        KNOWN["float32"],
        (2, 3),
        24,
        (Extent(600, 7), Extent(600, 7)),
        "gzip",
        16,
    )


def test_every_extent_has_its_owner() -> None:
    listed = listed_in(GOOD)
    assert [listed.owner_of(number) for number in range(4)] == [GOOD["name"][i] for i in (0, 1, 2, 2)]


@given(st.fixed_dictionaries({}, optional=COLUMNS), st.sets(st.sampled_from(sorted(GOOD)), max_size=2))
def test_columns_are_consistent_or_refused(changes: dict[str, Any], without: set[str]) -> None:
    columns = {key: value for key, value in {**GOOD, **changes}.items() if key not in without}
    try:
        listed = listed_in(columns)
    except Wrong:
        return
    assert_consistent(listed, columns)


def assert_consistent(listed: Listed, columns: dict[str, Any]) -> None:
    assert listed.names == columns["name"]
    extents = 0
    for entry, kind in zip(listed.entries, columns["kind"], strict=True):
        dtype, shape = columns["kinds"][kind]
        assert entry.dtype is KNOWN[dtype] and entry.shape == tuple(shape)
        assert entry.nbytes == math.prod(shape) * KNOWN[dtype].itemsize
        assert all(0 <= offset < 1 << 62 and 0 <= size < 1 << 62 for offset, size in entry.extents)
        extents += len(entry.extents)
    assert len(listed.sizes) == len(listed.offsets) == extents
    every = [name for entry in listed.entries for name in (entry.name, *entry.also)]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": ["a", "b"]}, "2 names, 3 kinds and 3 offsets"),
        ({"name": ["a", "b", "a"]}, "one name for two"),
        ({"name": ["a", "b", "tied"]}, "one name for two"),
        ({"name": ["a", "b", 3]}, "a name that is not a text"),
        ({"kind": [0, 1, 2]}, "a kind that is not there"),
        ({"kind": [0, -1, 0]}, "a kind that is not there"),
        ({"kind": [0, True, 0]}, "a kind that is not there"),
        ({"kinds": []}, "a kind that is not there"),
        ({"kinds": [["float32"], ["bool", []]]}, "'state/0/exp_avg': a kind that is not a dtype and a shape"),
        (
            {"kinds": [["float32", [2, 3]], ["bool", [-1]]]},
            "'state/0/step': a shape that is not a list of sizes",
        ),
        ({"kinds": [["float32", [1 << 61]], ["bool", []]]}, "a shape beyond any memory"),
        ({"offset": [4096, -1, 0]}, "'state/0/step': offset is no size: -1"),
        ({"also": [[3, "tied"]]}, "an invalid entry in also"),
        ({"also": [[0, "tied"], [0, "again"]]}, "an invalid entry in also"),
        ({"also": [[0]]}, "a name that is not a text"),
        ({"packed": [[2]]}, "without a description"),
        ({"packed": [[1, GOOD["packed"][0][1]]]}, "do not make its bytes"),
        ({"packed": {}}, "no packed"),
    ],
)
def test_what_is_wrong_is_told(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Wrong, match=why):
        listed_in({**deepcopy(GOOD), **changes})


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=6), st.integers(1, 45))
def test_stretches_are_apart_exactly_where_no_byte_belongs_to_two(
    spans: list[tuple[int, int]], size: int
) -> None:
    listed = listed_in(
        {
            "name": [str(number) for number in range(len(spans))],
            "kind": list(range(len(spans))),
            "kinds": [["uint8", [length]] for _, length in spans],
            "offset": [offset for offset, _ in spans],
        }
    )
    taken = [0, 1, *[offset + i for offset, length in spans for i in range(length)]]
    good = len(set(taken)) == len(taken) and max(taken) < max(size, 2)
    try:
        listed.require_apart([(0, 2, "its header")], max(size, 2))
    except Wrong as error:
        assert not good and ("outside the file" in str(error) or "in the same place" in str(error))
    else:
        assert good

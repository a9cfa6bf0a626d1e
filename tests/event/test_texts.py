"""The texts of many steps in a few arrays: as a sequence of (rows, text) they are what they were made of."""

import pickle
import sys
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.event.record import between
from notebook_learner.event.texts import Texts

RUNS = st.lists(st.tuples(st.integers(0, 3), st.text(max_size=3)), max_size=8)


def lines_of(runs):
    return [text for rows, text in runs for _ in range(rows)]


@given(RUNS)
def test_neighbours_of_the_same_text_are_one_run(runs):
    texts = Texts.of(runs)
    lines = lines_of(runs)
    assert list(texts) == [(len(list(same)), text) for text, same in groupby(lines)]
    assert texts == tuple(texts) and texts == list(texts) and texts == Texts.of([(1, line) for line in lines])
    assert texts != (*texts, (1, "more")) and texts.steps == len(lines)


@given(RUNS)
def test_runs_are_had_by_place_from_both_ends(runs):
    texts = Texts.of(runs)
    assert [texts[at] for at in range(len(texts))] == list(texts)
    assert [texts[at - len(texts)] for at in range(len(texts))] == list(texts)
    assert texts[1:] == list(texts)[1:]
    with pytest.raises(IndexError):
        texts[len(texts)]


@given(RUNS, st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_the_rows_has_their_texts(runs, start, stop):
    assert lines_of(between(Texts.of(runs), start, stop)) == lines_of(runs)[start:stop]


@given(st.lists(st.lists(st.text(max_size=2), max_size=5), max_size=4))
def test_lines_are_taken_a_block_at_a_time(blocks):
    texts = Texts()
    for block in blocks:
        texts.add_lines([line.encode() for line in block])
    assert texts == Texts.of((1, line) for block in blocks for line in block)


@given(RUNS)
def test_a_copy_in_another_process_is_the_same(runs):
    assert pickle.loads(pickle.dumps(Texts.of(runs))) == Texts.of(runs)


def test_a_text_may_hold_what_no_utf_8_can():
    assert list(Texts.of([(1, "\udc80")])) == [(1, "\udc80")]


def test_different_lines_take_their_bytes_and_eight_more():
    texts = Texts()
    lines = [f"{number} MB".encode() for number in range(100_000)]
    texts.add_lines(lines)
    assert len(texts) == 100_000
    size = sum(sys.getsizeof(part) for part in (texts._data, texts._ends, texts._rows))
    assert size < 1.25 * (sum(map(len, lines)) + 8 * len(lines))

import math
import os
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.errors import StoreError
from notebook_learner.store import format_number, log_lines, parse_log, read_log
from notebook_learner.store.log_lines import (
    format_final,
    format_numbers,
    format_rows,
    format_text,
    parse_rows,
)

ANY_FLOAT = st.floats() | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e15, 1e16, 1e22, 1e-5])


@dataclass(frozen=True)
class Rows:
    values: np.ndarray
    weights: np.ndarray | None = None


def bits(number):
    return "NaN" if math.isnan(number) else struct.pack("<d", number)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (64.0, "64"),
        (84.375, "84.375"),
        (1e-07, "0.0000001"),
        (1.5e-10, "0.00000000015"),
        (1e16, "10000000000000000"),
        (1.2345e20, "123450000000000000000"),
        (-1e-05, "-0.00001"),
        (0.1, "0.1"),
        (0.0, "0"),
        (-0.0, "-0"),
        (float("nan"), "NaN"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (np.float64(0.5), "0.5"),
        (3, "3"),
    ],
)
def test_numbers_are_written_as_rust_prints_them(number, text):
    assert format_number(number) == text


@given(ANY_FLOAT)
def test_a_number_reads_back_to_the_same_bits(number):
    text = format_number(number)
    assert "e" not in text and not text.endswith(".0")
    assert bits(float(text)) == bits(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_shorter_text_would_do(number):
    digits = format_number(number).replace("-", "").replace(".", "").strip("0")
    shortest = repr(number).split("e")[0].replace("-", "").replace(".", "").strip("0")
    assert digits == shortest


@given(st.lists(ANY_FLOAT))
def test_a_column_is_formatted_like_its_numbers(numbers):
    assert format_numbers(np.array(numbers, dtype=float)) == [format_number(number) for number in numbers]


def test_a_column_of_mixed_zeros_keeps_their_signs():
    assert format_numbers(np.array([0.0, -0.0, 0.0])) == ["0", "-0", "0"]


@given(st.lists(ANY_FLOAT, min_size=1), ANY_FLOAT)
def test_rows_of_one_weight_are_values_with_that_weight(numbers, weight):
    values, weights = np.array(numbers), np.full(len(numbers), weight)
    lines = [f"{format_number(number)},{format_number(weight)}\n" for number in numbers]
    assert format_rows(Rows(values, weights)) == "".join(lines)
    assert format_rows(Rows(weights, values)) == "".join(
        [f"{format_number(weight)},{format_number(number)}\n" for number in numbers]
    )


def test_rows_of_weight_zero_have_their_line():
    rows = Rows(np.array([84.375, np.nan, 50.0]), np.array([32.0, 0.0, 64.0]))
    assert format_rows(rows) == "84.375,32\nNaN,0\n50,64\n"


def test_readings_are_written_without_weights():
    assert format_rows(Rows(np.array([17.5, 17.5, 17.5]))) == "17.5\n17.5\n17.5\n"
    assert format_rows(Rows(np.empty(0))) == format_rows(Rows(np.empty(0), np.empty(0))) == ""


def test_texts_stay_on_one_line():
    assert format_text("a\r\nb\nc\u2028d\n") == "a b c d\n"
    assert format_text("") == "\n"


@given(
    st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), max_size=30),
    st.booleans(),
    st.none() | ANY_FLOAT,
)
def test_a_log_reads_back_to_the_same_bits(pairs, weighted, final):
    values = np.array([value for value, _ in pairs], dtype=float)
    weights = np.array([weight for _, weight in pairs], dtype=float) if weighted else None
    log = parse_log(
        (format_rows(Rows(values, weights)) + ("" if final is None else format_final(final))).encode()
    )
    assert [bits(v) for v in log.values] == [bits(v) for v in values]
    if weighted and pairs:
        assert [bits(w) for w in log.weights] == [bits(w) for w in weights]
    else:
        assert log.weights is None
    assert (log.final is None) == (final is None)
    assert final is None or bits(log.final) == bits(final)
    assert log.texts is None and len(log) == len(pairs)


@given(st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), min_size=1, max_size=5), st.data())
def test_a_partial_last_line_is_held_back(pairs, data):
    text = format_rows(Rows(*(np.array(column) for column in zip(*pairs, strict=True)))).encode()
    cut = data.draw(st.integers(0, len(text)))
    assert len(parse_log(text[:cut])) == text[:cut].count(b"\n")


def test_a_growing_file_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "Loss.log"
    path.write_bytes(b"0.5,32\n0.25,16\n0.37,fin")
    log = read_log(path)
    assert log.values.tolist() == [0.5, 0.25] and log.final is None
    assert read_log(str(path)).weights.tolist() == [32, 16]


def test_a_metric_that_has_only_an_epochs_value(tmp_path):
    log = parse_log(b"0.93,final\n")
    assert len(log) == 0 and log.final == 0.93 and log.weights is None


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0: 3 GB\nGPU 0: 4 GB\n",
        "1,2,3\n4\n",  # as many commas as lines, yet no pairs
        "1,2\n3\n",
        "1_000\n",
        "inf of what\n",
        "e\n",
        "\n\n",
        "\u00e9\n",
    ],
)
def test_lines_that_are_no_numbers_are_texts(text):
    log = parse_log(text.encode())
    assert log.texts == tuple(text.split("\n")[:-1])
    assert len(log) == text.count("\n") and len(log.values) == 0


SHAPES = [b"", b"1.5", b"1.5,2", b"-inf", b"x", b"2,3,4", b"7,final", b"\xff"]


@given(st.lists(st.sampled_from(SHAPES), max_size=9))
def test_lines_of_several_shapes_are_a_row_each(lines):
    log = parse_rows(b"".join(line + b"\n" for line in lines))
    known = {b"1.5": (1.5, 1), b"1.5,2": (1.5, 2), b"-inf": (-math.inf, 1)}
    rows = [known.get(line, (math.nan, 0)) for line in lines if line != b"7,final"]
    np.testing.assert_array_equal(log.values, [value for value, _ in rows])
    assert log.final == (7 if b"7,final" in lines else None) and log.texts is None
    if set(lines) <= {b"1.5", b"-inf", b"7,final"}:
        assert log.weights is None
    else:
        np.testing.assert_array_equal(log.weights, [weight for _, weight in rows])


def test_a_line_that_comes_again_and_again_is_parsed_once(monkeypatch):
    parsed = []
    parse = log_lines.parse_numbers
    monkeypatch.setattr(log_lines, "parse_numbers", lambda lines: parsed.append(lines) or parse(lines))
    assert len(parse_rows(b"\n" * 100_000 + b"1\n" * 100_000)) == 200_000
    assert parsed == [b"\n", b"1\n"]


def test_an_empty_file_has_no_steps():
    log = parse_log(b"")
    assert len(log) == 0 and log.texts is None and log.final is None


def test_what_is_no_metric_log_is_told_of_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    for name, said in (("pipe.log", "not a plain file"), ("folder.log", "not a plain file")):
        with pytest.raises(
            StoreError, match=rf"{name}' cannot be read as a metric log: {said}; give the path"
        ):
            read_log(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "none.log")


def test_a_log_is_read_in_blocks_up_to_its_first_nul_byte_and_not_beyond_a_bound(tmp_path):
    path, link = tmp_path / "Loss.log", tmp_path / "link.log"
    path.write_bytes(b"0.5,2\n0.25,4\n" + bytes(9))
    link.symlink_to(path)
    for each in (path, link):
        log = read_log(each)
        assert log.values.tolist() == [0.5, 0.25] and log.weights.tolist() == [2, 4]
    with path.open("r+b") as file:
        file.truncate(10 << 30)
    with pytest.raises(
        StoreError, match=r"has 10,737,418,240 bytes, and a metric log of over 1,073,741,824 is not"
    ):
        read_log(path)
    path.write_text("GPU 0\nGPU 1\nhal")
    assert read_log(path).texts == ("GPU 0", "GPU 1")

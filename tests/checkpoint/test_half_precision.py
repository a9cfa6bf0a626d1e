from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from notebook_learner.checkpoint.hdf5 import CompactRecorder, Hdf5Recorder, Rounded, halved, halved_all, lost
from notebook_learner.store import durable


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.0, 65504.0], torch.float16),
        ([1.0, 65520.0], torch.bfloat16),  # float16 would make it infinite
        ([1.0, 1e-8], torch.bfloat16),  # float16 would make it zero
        ([1.0, 0.0, -0.0], torch.float16),
        ([float("nan"), float("inf")], torch.float16),
        ([1.0, 3.4028e38], None),  # bfloat16 would make it infinite
        ([1.0, 1e-44], None),  # bfloat16 would make it zero
        ([1e5], None),  # one number
    ],
)
def test_the_first_half_that_keeps_the_range(numbers: list[float], expected: torch.dtype | None) -> None:
    found = halved(torch.tensor(numbers))
    assert (None if found is None else found[0].dtype) == expected


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.bfloat16])
def test_what_is_no_float32_or_float64_stays(dtype: torch.dtype) -> None:
    assert halved(torch.ones(10).to(dtype)) is None


def test_nan_and_infinity_stay_what_they_are() -> None:
    found = halved(torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5]))
    assert found is not None and found[1].error == 0
    assert str(found[0].tolist()) == "[nan, inf, -inf, 0.5]"


@given(arrays(np.float64, st.integers(2, 30), elements=st.floats(width=64)))
def test_no_number_is_lost_and_the_error_is_the_largest(numbers: np.ndarray) -> None:
    found = halved(torch.from_numpy(numbers))
    if found is None:
        return
    back = found[0].double().numpy()
    counted = np.isfinite(numbers) & (numbers != 0)
    assert np.array_equal(np.isfinite(numbers), np.isfinite(back))
    assert np.array_equal(numbers == 0, back == 0)
    errors = np.abs((back[counted] - numbers[counted]) / numbers[counted])
    assert found[1].error == pytest.approx(errors.max(initial=0.0))


def test_large_tensors_are_looked_at_in_pieces() -> None:
    tensor = torch.ones((1 << 22) + 5)
    tensor[-1] = 1e5
    found = halved(tensor)
    assert found is not None and found[0].dtype == torch.bfloat16 and found[0].shape == tensor.shape


def test_what_was_lost_in_one_line() -> None:
    _, rounded = halved_all([torch.ones(3), torch.tensor([0.1, 0.2]), torch.arange(3)], ["a", "b", "c"])
    assert rounded["a"] == Rounded("float32", 0.0) and "c" not in rounded
    assert lost(rounded) == "2 tensors in half precision; the largest relative error, 0.024 %, is in b"
    assert lost({"b": rounded["b"]}) == "1 tensor in half precision, b; its largest relative error is 0.024 %"
    assert lost({}) == "nothing was rounded"


@pytest.mark.filterwarnings("ignore:.*[qQ]uantize")
@pytest.mark.parametrize("recorder", [Hdf5Recorder(precision="half"), CompactRecorder()], ids=repr)
def test_tensors_come_back_in_16_bits(recorder: Hdf5Recorder, tmp_path: Path) -> None:
    value = {
        "w": torch.randn(64, 64),
        "d": torch.tensor([2.0**40 * 257 / 256, 1e-10], dtype=torch.float64),
        "step": torch.tensor(100_001.0),
        "rng": torch.randint(0, 256, (5056,), dtype=torch.uint8),
        "numpy": np.linspace(0, 1, 5),
        "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "quantized": torch.quantize_per_channel(
            torch.randn(2, 3), torch.tensor([0.1, 0.3]), torch.tensor([0, 3]), 0, torch.qint8
        ),
    }
    path = tmp_path / "model-1.h5"
    encoded = recorder.encode(value)
    durable.write_new(path, encoded.pieces, encoded.size)
    with durable.opened(path) as file:
        back, outline, line = recorder.decode(file).value, recorder.outline(file).value, recorder.lost(file)
    assert torch.equal(back["w"], value["w"].half()) and back["w"].dtype == torch.float16
    assert torch.equal(back["d"], value["d"].bfloat16()) and back["d"].dtype == torch.bfloat16
    assert torch.equal(back["step"], value["step"]) and torch.equal(back["rng"], value["rng"])
    assert np.array_equal(back["numpy"], value["numpy"]) and back["numpy"].dtype == np.float64
    assert torch.equal(back["quantized"], value["quantized"])
    assert torch.equal(back["last"], value["last"].half())
    assert back["last"].is_contiguous(memory_format=torch.channels_last)
    assert outline["w"].dtype == torch.float16 and outline["w"].is_meta
    assert line == "3 tensors in half precision; the largest relative error, 0.39 %, is in d"
    with h5py.File(path) as hdf5:
        assert hdf5["w"].dtype == np.float16
        assert np.array_equal(hdf5["w"][()], value["w"].half().numpy())


def test_half_the_size(tmp_path: Path) -> None:
    value = {"w": torch.randn(1000, 100)}
    full, half, compact = (
        recorder.encode(value).size
        for recorder in (Hdf5Recorder(), Hdf5Recorder(precision="half"), CompactRecorder())
    )
    assert half < 0.52 * full and compact < half

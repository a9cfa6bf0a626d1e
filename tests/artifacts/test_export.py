"""`export`: one HDF5 file with everything, which plain h5py and h5dump read."""

import json

import h5py
import numpy as np
import pytest
import torch
from artifacts_run import Run, finished, net

from notebook_learner.artifacts import Artifacts
from notebook_learner.artifacts.export import _Pages
from notebook_learner.errors import StoreError
from notebook_learner.store import files


@pytest.fixture
def run(tmp_path):
    return finished(tmp_path / "run")


def test_every_value_and_tensor_is_in_the_file(run, tmp_path):
    made, models = run
    path = Artifacts(made.directory).export(tmp_path / "run.h5")
    assert path == tmp_path / "run.h5"
    with h5py.File(path) as file:
        assert file["run"].attrs["model"] == "Net"
        for split in ("train", "valid"):
            for name in made.history.metrics(split):
                values = made.history.values(name, split)
                np.testing.assert_array_equal(file[f"series/{split}/{name}/value"], values)
        np.testing.assert_array_equal(file["epochs/valid/Loss/value"], [1.0, 0.5])
        for epoch, model in models.items():
            home = file[f"checkpoints/{epoch}"]
            assert home.attrs["epoch"] == epoch
            assert set(home) == {"model", "optim", "scheduler", "state"}
            for name, tensor in model.state_dict().items():
                np.testing.assert_array_equal(home[f"model/tensors/{name}"][()], tensor.numpy())
            np.testing.assert_array_equal(home["optim/moment"], np.arange(5.0))
            manifest = json.loads(home["optim/manifest"][()])
            assert manifest["tree"]["groups"][0]["betas"] == {"$tuple": [0.9, 0.999]}
            assert manifest["tensors"][0] == {"path": "moment", "dtype": "float32", "shape": [5]}


def test_the_file_stands_alone(run, tmp_path):
    made, _ = run
    path = Artifacts(made.directory).export(tmp_path / "run.h5")
    kinds = []
    with h5py.File(path) as file:
        file.visititems_links(lambda name, link: kinds.append(type(link)))
    assert set(kinds) <= {h5py.HardLink}


def test_unusual_tensors_are_right(tmp_path):
    run = Run(tmp_path / "run")
    model = net()
    tied = torch.randn(3, 2)
    extra = {
        "half": {
            "bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "fp8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(7),
            "bool": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j]),
            "one": tied,
            "two": tied,
        }
    }
    run.save("1", model, extra=extra)
    path = Artifacts(tmp_path / "run").export(tmp_path / "run.h5")
    with h5py.File(path) as file:
        home = file["checkpoints/1/model/extra/half"]
        assert home["bf16"][()].tolist() == [1.5, -2.0]
        assert home["fp8"].attrs["torch_dtype"] == "float8_e4m3fn"
        assert home["fp8"][()].tolist() == extra["half"]["fp8"].view(torch.uint8).tolist()
        assert home["empty"].shape == (0, 3)
        assert home["scalar"][()] == 7
        assert home["bool"][()].tolist() == [True, False]
        assert home["complex"][()].tolist() == [1 + 2j]
        np.testing.assert_array_equal(home["one"], tied.numpy())
        assert home["one"] == home["two"]


def test_h5dump_reads_the_file(run, tmp_path, hdf5_tool):
    path = Artifacts(run[0].directory).export(tmp_path / "run.h5")
    assert 'GROUP "checkpoints"' in hdf5_tool("h5dump", path)


def test_a_damaged_checkpoint_is_left_out(run, tmp_path):
    made, _ = run
    (made.directory / "checkpoint" / "model-1.h5").unlink()
    path = Artifacts(made.directory).export(tmp_path / "run.h5")
    with h5py.File(path) as file:
        assert set(file["checkpoints"]) == {"2"}


def test_a_run_without_checkpoints_is_exported(tmp_path):
    Run(tmp_path / "run").epoch(1)
    path = Artifacts(tmp_path / "run").export(tmp_path / "run.h5")
    with h5py.File(path) as file:
        assert len(file["series/train/Loss/value"]) == 6


def test_a_file_in_the_way_is_kept_unless_told_otherwise(run, tmp_path):
    target = tmp_path / "run.h5"
    target.write_text("mine")
    artifacts = Artifacts(run[0].directory)
    with pytest.raises(StoreError, match="overwrite=True"):
        artifacts.export(target)
    assert target.read_text() == "mine"
    artifacts.export(target, overwrite=True)
    assert h5py.is_hdf5(target)
    with pytest.raises(StoreError, match="is a directory"):
        artifacts.export(tmp_path, overwrite=True)


def test_nothing_is_left_where_writing_fails(run, tmp_path, monkeypatch):
    def full(descriptor, buffers, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_at", full)
    with pytest.raises(OSError, match="No space left"):
        Artifacts(run[0].directory).export(tmp_path / "run.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_only_one_part_of_one_checkpoint_is_in_memory(tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    for epoch in range(1, 5):
        run.save(str(epoch), torch.nn.Linear(1000, 1000))
    held = []
    written = _Pages.write
    monkeypatch.setattr(
        _Pages, "write", lambda self, data: held.append(memoryview(data).nbytes) or written(self, data)
    )
    path = Artifacts(tmp_path / "run").export(tmp_path / "run.h5")
    assert path.stat().st_size > 16_000_000
    assert sum(held) < 1_000_000  # HDF5 itself never saw the tensors


def test_pages_are_a_file():
    pages = _Pages()
    pages.seek(70_000)
    pages.write(b"x" * 100_000)
    pages.seek(0)
    pages.write(b"abc")
    pages.seek(-1, 2)
    buffer = bytearray(4)
    assert pages.readinto(buffer) == 1
    pages.seek(69_999)
    assert pages.readinto(buffer) == 4
    assert bytes(buffer) == b"\0xxx"
    assert pages.size == 170_000
    whole = bytearray(pages.size)
    for start, data in pages.written():
        whole[start : start + len(data)] = data
    assert bytes(whole) == b"abc" + bytes(69_997) + b"x" * 100_000

"""save and load: what a training loop by hand keeps, in one file of its own."""

from __future__ import annotations

import h5py
import pytest
import torch
from torch import nn

from notebook_learner import LearnerBuilder
from notebook_learner.checkpoint import Hdf5Recorder, load, save
from notebook_learner.errors import CheckpointError, DamagedError

SUFFIXES = ["h5", "mpk.gz", "safetensors"]


def by_hand(model, optimizer, steps):
    """A loop without anything of ours; dropout draws from torch's generator."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


def parts():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_loop_by_hand_goes_on_from_its_file_to_the_same_bits(suffix, tmp_path):
    torch.manual_seed(0)
    model, optimizer = parts()
    by_hand(model, optimizer, 5)
    path = save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "done": 5,
        },
        tmp_path / f"mine.{suffix}",
    )
    by_hand(model, optimizer, 5)

    torch.manual_seed(99)
    again, its_optimizer = parts()
    kept = load(path)
    again.load_state_dict(kept["model"])
    its_optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["rng"])
    by_hand(again, its_optimizer, 10 - kept["done"])

    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_h5py_reads_the_tensors_by_their_names(tmp_path):
    weight = torch.randn(2, 3)
    path = save({"layer": {"weight": weight}}, str(tmp_path / "mine.h5"))
    with h5py.File(path) as file:
        assert file["layer/weight"][:].tolist() == weight.tolist()


def test_a_file_is_replaced_whole_or_stays(tmp_path):
    path = save({"epoch": 1}, tmp_path / "mine.h5")
    with pytest.raises(CheckpointError, match=r"mine\.h5"):
        save({"epoch": object()}, path)
    assert load(path) == {"epoch": 1}
    save({"epoch": 2}, path)
    assert load(path) == {"epoch": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["mine.h5"]  # and nothing half done beside it


def test_a_file_of_a_runs_checkpoint_is_read_too(tmp_path):
    model = nn.Linear(2, 1)
    builder = LearnerBuilder(tmp_path / "run").loss(nn.functional.mse_loss).num_epochs(1).renderer("silent")
    learner = builder.with_file_checkpointer().build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.fit([(torch.ones(4, 2), torch.ones(4, 1))])
    kept = load(tmp_path / "run" / "checkpoint" / "model-1.h5")["tensors"]
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_is_an_error_and_never_other_weights(suffix, tmp_path):
    path = save({"weight": torch.randn(1000)}, tmp_path / f"mine.{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedError, match="mine"):
        load(path)


def test_a_recorder_with_options_is_given_by_name(tmp_path):
    weight = torch.randn(1000)
    whole = save({"weight": weight}, tmp_path / "whole.h5").stat().st_size
    path = save({"weight": weight}, tmp_path / "half.h5", recorder=Hdf5Recorder(precision="half"))
    assert path.stat().st_size < whole
    kept = load(path)["weight"]
    assert torch.equal(kept, weight.half()) and kept.dtype == torch.float16
    model = torch.nn.Linear(1000, 1, bias=False)
    model.load_state_dict({"weight": kept[None]})
    assert torch.equal(model.weight[0], weight.half().float()) and model.weight.dtype == torch.float32


def test_another_end_of_the_name_says_which_there_are(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"mine\.pt: .* say the format: \.h5, \.mpk\.gz, \.safetensors; .*recorder="
    ):
        save({}, tmp_path / "mine.pt")
    with pytest.raises(CheckpointError, match=r"say the format: \.h5"):
        load(tmp_path / "mine.pt")

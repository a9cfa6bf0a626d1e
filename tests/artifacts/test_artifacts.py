"""`Artifacts`: what a run measured and saved, read from its directory alone."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from artifacts_run import Run, finished, net
from torch import nn

from notebook_learner.artifacts import Artifacts
from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.errors import DamagedError, StateError, StoreError
from notebook_learner.event import MetricInfo


@pytest.fixture
def run(tmp_path):
    return finished(tmp_path / "run")


def test_a_series_is_what_the_history_of_the_run_holds(run):
    made, _ = run
    artifacts = Artifacts(made.directory)
    for split in ("train", "valid"):
        assert artifacts.metrics(split) == made.history.metrics(split)
        for name in artifacts.metrics(split):
            series = artifacts.series(name, split)
            np.testing.assert_array_equal(np.asarray(series), made.history.values(name, split))
            np.testing.assert_array_equal(series.weight, made.history.weights(name, split))
            np.testing.assert_array_equal(series.epoch, made.history.steps(split)["epoch"])
            np.testing.assert_array_equal(series.step, made.history.steps(split)["step"])
            np.testing.assert_array_equal(series.iteration, made.history.iterations(split))
            np.testing.assert_array_equal(artifacts.epochs(name, split), made.history.epochs(name, split))


def test_one_epoch_of_a_series_has_only_its_steps(run):
    made, _ = run
    series = Artifacts(made.directory).series("Loss", "train", epoch=2)
    assert set(series.epoch) == {2}
    np.testing.assert_array_equal(series.value, made.history.values("Loss", "train", 2))


def test_the_time_of_a_step_is_when_it_was_taken(run):
    series = Artifacts(run[0].directory).series("Loss", "train")
    assert np.all(np.abs(series.time - time.time()) < 60)
    assert np.all(np.diff(series.time) >= 0)


def test_an_unknown_metric_lists_those_that_exist(run):
    with pytest.raises(KeyError, match="Loss, Top-1 Accuracy"):
        Artifacts(run[0].directory).series("Accuracy", "train")


def test_values_written_meanwhile_are_seen(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    artifacts = Artifacts(tmp_path)
    assert len(artifacts.series("Loss", "train")) == 6
    run.epoch(2)
    assert len(artifacts.series("Loss", "train")) == 12


def test_a_run_that_left_only_logs_can_be_read(run):
    made, _ = run
    for name in ("artifacts.h5", "experiment.log"):
        (made.directory / name).unlink()
    artifacts = Artifacts(made.directory)
    assert artifacts.run is None
    assert "Top-1_Accuracy" in artifacts.metrics("train")  # the logs know no spaces
    np.testing.assert_array_equal(artifacts.epochs("Loss", "valid"), [1.0, 0.5])
    assert "an unknown model" in str(artifacts.summary())


def test_the_summary_has_the_best_and_worst_epochs(run):
    text = str(Artifacts(run[0].directory).summary())
    assert "Net · 23 parameters" in text
    assert "lr" in text
    (row,) = [line for line in text.splitlines() if line.startswith("valid")]
    assert row.split() == ["valid", "Loss", "0.5000", "2", "1.000", "1"]


def test_the_table_for_pandas_has_a_row_a_step(run):
    frame = Artifacts(run[0].directory).to_pandas()
    assert len(frame) == 24
    assert {"epoch", "split", "step", "Loss", "Top-1 Accuracy"} <= set(frame.columns)


def test_the_plot_draws_the_plotted_metrics(run):
    run = Artifacts(run[0].directory)
    assert len(run.plot(["Loss"]).axes) == len(run.plot("Loss").axes) == 1
    assert run.plot("Loss").axes[0].get_title() == run.plot(["Loss"]).axes[0].get_title()


def test_the_timeline_tells_what_happened(tmp_path):
    made = Run(tmp_path)
    made.epoch(1)
    made.status("paused", 2, 5)
    artifacts = Artifacts(tmp_path)
    assert artifacts.status == "paused"
    made.status("finished")
    assert [mark.kind for mark in artifacts.timeline] == ["opened", "paused", "finished"]
    assert artifacts.status == "finished"


def test_a_run_that_was_killed_long_ago_is_unfinished(tmp_path):
    Run(tmp_path).epoch(1)
    assert Artifacts(tmp_path).status == "running"
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert Artifacts(tmp_path).status == "unfinished"


# Weights ---------------------------------------------------------------------------------------------


def assert_same(model, other):
    mine, theirs = model.state_dict(), other.state_dict()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


@pytest.mark.parametrize(("which", "epoch"), [("best", 1), ("latest", 2), (1, 1), ("2", 2)])
def test_a_model_is_loaded_by_epoch_best_latest_and_label(run, which, epoch):
    made, models = run
    model = net(9)
    assert Artifacts(made.directory).load_model(model, which) is model
    assert_same(model, models[epoch])


def test_a_state_dict_loads_into_a_plain_model(run):
    made, models = run
    model = net(9)
    model.load_state_dict(Artifacts(made.directory).state_dict(2))
    assert_same(model, models[2])


def test_another_model_is_refused_with_every_difference_and_left_as_it_was(run):
    made, _ = run
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False), nn.PReLU())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StateError) as caught:
        Artifacts(made.directory).load_model(model)
    text = str(caught.value)
    for line in (
        "0.weight: saved float32 (3, 4), the model has float32 (5, 4)",
        "0.bias: saved float32 (3,), the model has float32 (5,)",
        "2.bias: saved float32 (2,), the model has no such tensor",
        "3.weight: not saved; the model has float32 (1,)",
    ):
        assert line in text
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weights_keep_the_dtype_of_the_model(run):
    made, models = run
    model = Artifacts(made.directory).load_model(net(9).to(torch.float64), 1)
    assert model[0].weight.dtype == torch.float64
    assert torch.equal(model[0].weight.float(), models[1][0].weight)


class Tracked(nn.Module):
    """With a cache that is not saved by torch, and with extra state."""

    def __init__(self, value, cache):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(value)))
        self.register_buffer("cache", torch.zeros(cache), persistent=False)
        self.seen = value

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_extra_state_is_loaded_and_non_persistent_buffers_are_not(tmp_path):
    run = Run(tmp_path)
    model = Tracked(3, cache=7)
    run.save("1", model, extra={"": model.get_extra_state()})
    other = Artifacts(tmp_path).load_model(Tracked(0, cache=2), 1)
    assert other.seen == 3
    assert other.weight.tolist() == [3.0, 3.0]
    assert other.cache.tolist() == [0.0, 0.0]


def test_half_precision_weights_are_loaded(tmp_path):
    run, model = Run(tmp_path), net(1)
    run.save("1", model, recorder=Hdf5Recorder(precision="half"))
    loaded = Artifacts(tmp_path).load_model(net(2), 1)
    torch.testing.assert_close(loaded[0].weight, model[0].weight, rtol=1e-3, atol=1e-3)
    assert "half precision" in str(Artifacts(tmp_path).checkpoints)


def test_a_damaged_checkpoint_is_refused_and_the_model_left_as_it_was(run):
    made, _ = run
    flip(made.directory / "checkpoint" / "model-2.h5")
    model = net(9)
    with pytest.raises(DamagedError, match=r"model-2\.h5"):
        Artifacts(made.directory).load_model(model, 2)
    assert_same(model, net(9))


def flip(path, offset=-3):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_missing_checkpoint_lists_those_that_exist(run):
    with pytest.raises(StateError, match=r"no checkpoint 7; there are: 1, 2"):
        Artifacts(run[0].directory).load_model(net(), 7)


# To look at ------------------------------------------------------------------------------------------


def test_the_representation_tells_how_the_run_stands(run):
    text = repr(Artifacts(run[0].directory))
    assert "finished, 2 epochs, 12 training steps, 2 checkpoints" in text


def test_the_list_of_checkpoints_prints_as_a_table(run):
    made, _ = run
    lines = str(Artifacts(made.directory).checkpoints).splitlines()
    assert lines[0].split() == ["label", "place", "size", "saved", "metrics", "state"]
    assert "end of epoch 1" in lines[2]
    assert "Loss 0.1000" in lines[2]
    assert lines[3].endswith("complete")
    (made.directory / "checkpoint" / "optim-2.h5").unlink()
    assert str(Artifacts(made.directory).checkpoints).splitlines()[3].endswith("damaged")


def test_names_from_strangers_are_escaped_in_html(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    Run(tmp_path, infos=(MetricInfo(evil, "train"),), settings={evil: evil})
    html = Artifacts(tmp_path)._repr_html_()
    assert "<img" not in html
    assert "&lt;img" in html
    assert "http" not in html.replace(str(tmp_path), "")


def test_a_directory_without_a_run_says_what_a_run_has(tmp_path):
    with pytest.raises(StoreError, match=r"holds no run: a run has experiment\.log"):
        _ = Artifacts(tmp_path).history
    with pytest.raises(StoreError, match="there is no directory"):
        Artifacts(tmp_path / "nowhere").verify()
    with pytest.raises(StoreError, match="is a file"):
        (tmp_path / "file").write_text("")
        _ = Artifacts(tmp_path / "file").checkpoints
    assert "no run there yet" in repr(Artifacts(tmp_path))


def test_no_hdf5_library_is_loaded_to_read_a_run(run):
    made, _ = run
    code = (
        "import sys; from notebook_learner.artifacts import Artifacts; "
        "a = Artifacts(sys.argv[1]); a.summary(); a.series('Loss', 'train'); a.checkpoints; a.state_dict(1); "
        "assert a.verify(), a.verify(); a.timeline; repr(a); assert 'h5py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(made.directory)], check=True)

from pathlib import Path

import pytest

from notebook_learner.errors import ConfigurationError
from notebook_learner.store import RunLayout, check_metric_name, file_name, same_file

BURN_NAMES = [
    "Loss",
    "Learning Rate",
    "Top-K Accuracy @ TopK(5)",
    "AUROC [macro]",
    "Precision @ Threshold(0.5) [Macro]",
    "FBetaScore (1) @ TopK(1) [Micro]",
    "SSIM (dr=1, w=11, \u03c3=1.5)",
    "BLEU-4",
    "a..b",
]
NAMES_THAT_LEAVE = [
    "..",
    ".",
    ".hidden",
    "../Loss",
    "a/b",
    "/etc/passwd",
    "..\\Loss",
    "C:\\Loss",
    "",
    "   ",
    "Loss\0",
    "Loss\n",
    "Loss\x7f",
    "Loss\u2028x",
    "Loss\ud800",
    "x" * 252,
    "\u00e9" * 130,
]


def test_paths_are_burns():
    layout = RunLayout("runs/digits")
    assert layout.experiment_log == Path("runs/digits/experiment.log")
    assert layout.checkpoint == Path("runs/digits/checkpoint")
    assert layout.split_dir("train", 1) == Path("runs/digits/train/epoch-1")
    assert layout.metric_log("valid", 12, "CPU Usage") == Path("runs/digits/valid/epoch-12/CPU_Usage.log")


@pytest.mark.parametrize("name", BURN_NAMES)
def test_burns_metric_names_become_files_of_the_directory(name, tmp_path):
    assert check_metric_name(name) is None
    path = RunLayout(tmp_path).metric_log("train", 1, name)
    path.parent.mkdir(parents=True)
    path.write_text("1\n")
    assert [entry.name for entry in path.parent.iterdir()] == [name.replace(" ", "_") + ".log"]


@pytest.mark.parametrize("name", NAMES_THAT_LEAVE)
def test_a_name_that_cannot_be_a_file_of_the_directory_is_refused(name, tmp_path):
    mistake = check_metric_name(name)
    assert mistake is not None and repr(name) in mistake and "\n" not in mistake
    with pytest.raises(ConfigurationError) as error:
        RunLayout(tmp_path).metric_log("train", 1, name)
    assert error.value.mistakes == (mistake,)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_string_is_a_mistake_too():
    assert "it must be a string" in check_metric_name(None)
    assert check_metric_name(3) == "a metric's name is 3, an int; it must be a string, for it names a file"


def test_the_longest_name_that_fits_a_file_system_works(tmp_path):
    path = tmp_path / file_name("x" * 251)
    path.write_text("")
    assert path.exists()


def test_names_that_share_a_file_are_told():
    assert same_file("Learning Rate", "Learning_Rate")
    assert same_file("F1", "f1")  # one file on macOS and Windows
    assert same_file("caf\u00e9", "cafe\u0301")
    assert not same_file("Loss", "Loss 2")


def test_passes_are_found_among_other_things(tmp_path):
    layout = RunLayout(tmp_path)
    assert list(layout.passes()) == []
    for folder in (
        "train/epoch-1",
        "train/epoch-10",
        "valid/epoch-1",
        "train/epoch-x",
        "train/epoch-01",
        "test/a",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "valid/epoch-2").write_text("a file")
    found = {(split, epoch) for split, epoch, _ in layout.passes()}
    assert found == {("train", 1), ("train", 10), ("valid", 1)}

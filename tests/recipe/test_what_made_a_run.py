"""A run's directory says what made the run: options, data, source, versions, and what was changed by hand."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import itertools
import json
import linecache
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import h5py
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.recipe.data_fingerprint import fingerprint
from notebook_learner.recipe.environment import MOST_OF_A_DIFF, changes_in
from notebook_learner.recipe.source_text import LONGEST, text_of

X, Y = torch.arange(64.0).reshape(16, 4) / 64, torch.arange(16) % 2
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 16, 4)]


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # a line to be found


def builder_in(directory: Path) -> LearnerBuilder:
    return (
        LearnerBuilder(directory)
        .loss(nn.CrossEntropyLoss(label_smoothing=0.1))
        .num_epochs(2)
        .renderer("silent")
        .with_file_checkpointer()
    )


def learner_in(directory: Path, data: Any = BATCHES, width: int = 3, **options: Any) -> Any:
    builder = builder_in(directory)
    if options.pop("resume", False):
        builder.resume()
    model = Net(width)
    return builder.build(model, SGD(model.parameters(), **{"lr": 0.1, **options}), None, data)


def taken(learner: Any) -> None:
    """Take a step, and wait for the files."""
    learner.step()
    assert learner.artifacts is not None


# What is recorded --------------------------------------------------------------------------------------


def test_the_recipe_has_every_option_that_was_chosen(tmp_path: Path) -> None:
    model = Net(3)
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.2)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
    builder = builder_in(tmp_path).seed(3).grads_accumulation(2).clip_gradients(norm=1.5)
    builder.build(model, optimizer, StepLR(optimizer, step_size=7, gamma=0.5), loader).fit()
    told = Artifacts(tmp_path).recipe
    assert told["optimizer"]["class"] == "AdamW"
    assert {name: told["optimizer"][name] for name in ("lr", "weight_decay", "eps", "amsgrad")} == {
        "lr": 0.01,
        "weight_decay": 0.2,
        "eps": 1e-8,
        "amsgrad": False,
    }
    assert told["schedule"] == {"per": "epoch", "class": "StepLR", "step_size": 7, "gamma": 0.5}
    assert told["loss"]["name"] == "CrossEntropyLoss" and told["loss"]["label_smoothing"] == 0.1
    assert (told["batch_size"], told["epochs"], told["seed"]) == (4, 2, 3)
    assert (told["accumulation"], told["clip_norm"]) == (2, 1.5)
    assert told["loaders"]["train"] == {
        "class": "DataLoader",
        "length": 4,
        "batch_size": 4,
        "workers": 0,
        "shuffle": True,
        "drop_last": False,
        "dataset": "TensorDataset",
        "samples": 16,
    }
    assert told["model"]["class"] == "Net" and told["model"]["parameters"] == 23
    assert "# a line to be found" in told["source"]["model"]["Net"]
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert told["versions"]["h5py"] == h5py.__version__
    assert told["threads"] == torch.get_num_threads() and told["deterministic"] is False
    assert told["hardware"]["cores"] > 0


def test_groups_and_several_optimizers_are_told_one_by_one(tmp_path: Path) -> None:
    model = Net(3)
    first, last = model.layers[0], model.layers[2]
    pair = {
        "g": SGD([{"params": first.weight, "lr": 0.5}, {"params": first.bias}], lr=0.1),
        "d": SGD(last.parameters(), lr=0.2, momentum=0.9),
    }
    taken(builder_in(tmp_path).build(model, pair, None, BATCHES))
    told = Artifacts(tmp_path).recipe["optimizers"]
    assert [told["g"][f"group {n}"]["lr"] for n in (0, 1)] == [0.5, 0.1]
    assert (told["d"]["lr"], told["d"]["momentum"]) == (0.2, 0.9)


def test_a_users_own_values_come_back(tmp_path: Path) -> None:
    values = {"width": 3, "name": "a", "sizes": (2, 3), "nested": {"rate": 0.5}, "where": Path("data/x")}
    builder = builder_in(tmp_path).config(values).config(SimpleNamespace(augment=True))
    taken(builder.build(Net(3), SGD, None, BATCHES))
    expected = {
        "width": 3,
        "name": "a",
        "sizes": [2, 3],
        "nested": {"rate": 0.5},
        "where": "data/x",
        "augment": True,
    }
    assert Artifacts(tmp_path).config == expected
    assert Artifacts(tmp_path).recipe["config"] == expected


def test_plain_readers_find_the_recipe_in_both_hdf5_files(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.fit()
    with h5py.File(tmp_path / "artifacts.h5") as file:
        shown = json.loads(file["run/recipe"][0])
    assert shown == dict(Artifacts(tmp_path).recipe)
    (tmp_path / "artifacts.h5").unlink()
    kept = Artifacts(tmp_path).recipe  # from the newest checkpoint
    assert kept["optimizer"] == shown["optimizer"] and kept["versions"] == shown["versions"]
    state = max((tmp_path / "checkpoint").glob("state-*.h5"), key=lambda path: path.stat().st_mtime_ns)
    assert b'"recipe"' in state.read_bytes()


def test_a_class_is_found_as_inspect_finds_it() -> None:
    @dataclass
    class Net:  # of the name of another one in this file
        width: int

        def forward(self) -> int:
            return self.width

    @final
    class WithoutMethods:
        width = 3

    for each in (Net, WithoutMethods, globals()["Net"], *_classes_of_this_house()):
        assert text_of(each) == textwrap.dedent(inspect.getsource(each))[:LONGEST], each


@pytest.mark.parametrize(
    "saved", ["def step(model, batch):\n    return model(", 'def step(a, b):\n    """To be']
)
def test_a_file_that_is_being_edited_has_no_source_and_stops_no_training(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "half_written_step.py"
    file.write_text("def step(model, batch):\n    return model(batch[0]).sum()\n")
    monkeypatch.syspath_prepend(tmp_path)
    step = importlib.import_module("half_written_step").step
    file.write_text(saved)  # an editor that saves by itself
    linecache.checkcache()
    assert text_of(step) is None
    model = nn.Linear(4, 2)
    builder = LearnerBuilder(tmp_path / "run").train_step(step).num_epochs(1).renderer("silent")
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, BATCHES)
    learner.fit()
    assert learner.status == "finished"


def _classes_of_this_house() -> list[type]:
    named = [*vars(sys.modules[LearnerBuilder.__module__]).values()]
    found = [each for each in named if inspect.isclass(each) and "notebook_learner" in each.__module__]
    assert len(found) > 10
    return found


def test_finding_a_class_in_a_thread_lets_a_cell_parse_its_code_meanwhile() -> None:
    """A cell failed with a SystemError if a thread parsed a file while the collector ran (Python 3.11.7)."""
    over, read = threading.Event(), [0]

    def read_on() -> None:
        while not over.is_set():
            text_of(Net)
            read[0] += 1

    def wait(*_: Any) -> None:  # while the cell is being parsed, the other thread gets its turn
        time.sleep(1e-4)

    code = Path(inspect.getfile(inspect)).read_text()[:20_000].rpartition("\ndef ")[0]
    thread = threading.Thread(target=read_on)
    threshold = gc.get_threshold()
    gc.callbacks.append(wait)
    try:
        gc.set_threshold(300)
        thread.start()
        for _ in range(5):
            ast.parse(code)
    finally:
        over.set()
        gc.callbacks.remove(wait)
        gc.set_threshold(*threshold)
        thread.join()
    assert read[0] > 0


def test_source_text_can_be_left_out(tmp_path: Path) -> None:
    builder_in(tmp_path).record(source=False).build(Net(3), SGD, None, BATCHES).fit()
    told = Artifacts(tmp_path).recipe
    assert "source" not in told and "diff" not in told and told["cells"] == []
    assert "a line to be found" not in json.dumps(told)
    assert told["optimizer"]["class"] == "SGD" and "torch" in told["versions"]


def test_no_environment_variable_and_no_text_of_a_variable_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "hush-hush-1")
    secret, factor = "hush-hush-2", 0.25

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, targets) * (factor if secret else 1)

    builder_in(tmp_path).loss(loss).build(Net(3), SGD, None, BATCHES).fit()
    told = Artifacts(tmp_path).recipe
    assert "hush-hush" not in json.dumps(told)
    assert told["loss"]["reads"]["factor"] == 0.25  # a number that the loss reads
    assert "factor if secret" in told["source"]["loss"]


def test_a_run_of_an_earlier_version_says_that_it_has_no_recipe(tmp_path: Path) -> None:
    learner_in(tmp_path).fit()
    for path in tmp_path.rglob("*.h5"):
        path.unlink()
    told = Artifacts(tmp_path).recipe
    assert told == {} and Artifacts(tmp_path).config == {}
    assert "kept no recipe" in repr(told) and "kept no recipe" in told._repr_html_()


# The data ----------------------------------------------------------------------------------------------


class Drawing(Dataset[Any]):
    """Draws at each sample, and counts."""

    def __init__(self) -> None:
        self.values, self.asked = torch.arange(8.0), 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        self.asked += 1
        return self.values[at] + torch.rand(4), at % 2


def test_the_fingerprint_asks_for_no_sample(tmp_path: Path) -> None:
    def trained(directory: Path) -> Any:
        torch.manual_seed(5)
        learner = learner_in(directory, DataLoader(data, batch_size=2, shuffle=True))
        learner.step_epoch()
        assert learner.artifacts is not None  # waits for the files
        return learner.model.state_dict()

    data = Drawing()
    first = trained(tmp_path / "a")
    assert data.asked == 8
    again = trained(tmp_path / "b")
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    runs = [Artifacts(tmp_path / each).recipe["data"] for each in "ab"]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BATCHES, BATCHES[:-1]),
        (BATCHES, [(x + 1e-6, y) for x, y in BATCHES]),
        (TensorDataset(X, Y), TensorDataset(X, 1 - Y)),
        (TensorDataset(X, Y), TensorDataset(X.double(), Y)),
        (DataLoader(TensorDataset(X, Y)), DataLoader(TensorDataset(X[1:], Y[1:]))),
        (X.numpy(), X.numpy()[::-1]),
        ({"x": ["a", "b"]}, {"x": ["a", "c"]}),
    ],
)
def test_other_data_has_another_fingerprint(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_of_much_data_some_rows_are_looked_at() -> None:
    many = torch.zeros(1 << 21, 4)
    first = fingerprint(many)
    many[-1] = 1
    assert fingerprint(many) != first


# What was changed --------------------------------------------------------------------------------------


def test_a_change_by_hand_is_recorded_with_its_step(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(2)
    learner.lr = 0.05
    learner.step()
    learner.optimizer.param_groups[0]["weight_decay"] = 0.5
    learner.lr = 0.02
    learner.fit()
    changes = Artifacts(tmp_path).recipe["changes"]
    assert [(each["iteration"], each["text"]) for each in changes] == [(2, "lr = 0.05"), (3, "lr = 0.02")]
    assert changes[0]["changed"] == {"optimizer.lr": [0.1, 0.05]}
    assert changes[1]["changed"] == {"optimizer.weight_decay": [0, 0.5], "optimizer.lr": [0.05, 0.02]}
    assert Artifacts(tmp_path).recipe["optimizer"]["lr"] == 0.1  # what the run began with


def test_a_run_that_goes_on_keeps_what_it_began_with(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(3)
    learner.save()
    begun = dict(Artifacts(tmp_path).recipe)
    other = [(x + 1, y) for x, y in BATCHES]
    learner_in(tmp_path, other, resume=True).fit()
    told = Artifacts(tmp_path).recipe
    assert {name: told[name] for name in begun if name != "changes"} == {
        name: each for name, each in begun.items() if name != "changes"
    }
    [change] = told["changes"]
    assert (change["text"], change["iteration"]) == ("resumed", 3)
    assert [*change["changed"]] == ["data.train"]


def test_a_checkpoint_gives_the_recipe_where_artifacts_h5_is_gone(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(3)
    learner.save()
    (tmp_path / "artifacts.h5").unlink()
    learner_in(tmp_path, resume=True).fit()
    [change] = Artifacts(tmp_path).recipe["changes"]
    assert (change["text"], change["changed"]) == ("resumed", {})


def test_a_new_run_in_the_directory_begins_a_new_recipe(tmp_path: Path) -> None:
    learner_in(tmp_path / "run").fit()
    learner_in(tmp_path / "run", lr=0.2).fit()
    told = Artifacts(tmp_path / "run").recipe
    assert told["optimizer"]["lr"] == 0.2 and told["changes"] == []


def test_repairing_keeps_the_recipe(tmp_path: Path) -> None:
    learner_in(tmp_path).fit()
    before = Artifacts(tmp_path).recipe
    Artifacts(tmp_path).renew()
    assert Artifacts(tmp_path).recipe == before != {}


# The work tree -----------------------------------------------------------------------------------------


def test_the_changes_of_a_work_tree_are_recorded_up_to_a_bound(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True)

    assert changes_in(tmp_path) is None  # no repository
    folder = tmp_path / "work"
    folder.mkdir()
    git("init", "-q", "work")
    (folder / "code.py").write_text("x = 1\n")
    git("-C", "work", "add", "code.py")
    git("-C", "work", "commit", "-qm", "first")
    (folder / "code.py").write_text("x = 2\n")
    assert "-x = 1\n+x = 2" in str(changes_in(folder))
    other = tmp_path / "other"
    git("clone", "-q", "work", "other")
    (other / "code.py").write_text("y = 12345\n" * (MOST_OF_A_DIFF // 5))
    assert len(str(changes_in(other))) == MOST_OF_A_DIFF


# Comparing ---------------------------------------------------------------------------------------------


def test_a_sweeps_comparison_names_what_was_varied_and_nothing_else(tmp_path: Path) -> None:
    varied = itertools.product((0.1, 0.2), (2, 3), (0.0, 1e-4), (0.0, 0.1, 0.2))
    runs = []
    for number, (lr, width, decay, smoothing) in enumerate(itertools.islice(varied, 20)):
        model = Net(width)
        builder = builder_in(tmp_path / str(number)).loss(nn.CrossEntropyLoss(label_smoothing=smoothing))
        taken(builder.build(model, AdamW(model.parameters(), lr=lr, weight_decay=decay), None, BATCHES))
        runs.append(tmp_path / str(number))
    columns = [*Artifacts.compare(runs).table[0]]
    measured = [each for each in columns if each.endswith((" best", " last"))]
    assert set(columns) - {"run", "epochs", "status", *measured} == {
        "lr",
        "parameters",
        "weight_decay",
        "label_smoothing",
    }


def test_a_value_of_the_users_own_stands_for_what_follows_from_it(tmp_path: Path) -> None:
    for width, lr in ((2, 0.1), (3, 0.2), (4, 0.2)):
        model = Net(width)
        builder = builder_in(tmp_path / str(width)).config({"width": width, "rate": lr})
        taken(builder.build(model, SGD(model.parameters(), lr=lr), None, BATCHES))
    table = Artifacts.compare([tmp_path / str(width) for width in (2, 3, 4)]).table
    assert [(row["width"], row["rate"]) for row in table] == [(2, 0.1), (3, 0.2), (4, 0.2)]
    assert not {"parameters", "lr"} & {*table[0]}


def test_two_runs_that_differ_in_two_things_show_both(tmp_path: Path) -> None:
    for name, decay, smoothing in (("a", 0.0, 0.0), ("b", 0.1, 0.2)):
        model = Net(3)
        builder = builder_in(tmp_path / name).loss(nn.CrossEntropyLoss(label_smoothing=smoothing))
        taken(builder.build(model, SGD(model.parameters(), lr=0.1, weight_decay=decay), None, BATCHES))
    table = Artifacts.compare([tmp_path / "a", tmp_path / "b"]).table
    assert (table[1]["weight_decay"], table[1]["label_smoothing"]) == (0.1, 0.2)


def test_a_run_that_was_changed_by_hand_differs_by_that(tmp_path: Path) -> None:
    for name in "ab":
        learner = learner_in(tmp_path / name)
        learner.step(2)
        if name == "b":
            learner.lr = 0.05
        taken(learner)
    table = Artifacts.compare([tmp_path / "a", tmp_path / "b"]).table
    assert [row["changed by hand"] for row in table] == [None, "lr = 0.05 at step 2"]


def test_a_list_of_the_users_own_class_is_not_indexed() -> None:
    class Drawn(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            raise AssertionError("it was asked for a sample")

        def __iter__(self) -> Any:
            raise AssertionError("it was walked")

    assert len(fingerprint(Drawn([1, 2, 3]))) == 16

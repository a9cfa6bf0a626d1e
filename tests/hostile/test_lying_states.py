"""States that a stranger made: every checksum fits, every tensor has its shape, and a value is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_run import learner_in, run_in
from hostile_worker import differences, everything, inside

from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.errors import DamagedError, NotebookLearnerError, StateError

LABEL = "2-3"
Change = Callable[[Any], Any]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run_in(tmp_path / "run", Hdf5Recorder())
    return tmp_path / "run"


def rewrite(directory: Path, part: str, change: Change) -> None:
    """Change what a part holds, and make the commit file speak of it."""
    folder = CheckpointFolder(directory / "checkpoint", Hdf5Recorder())
    info = folder.find(LABEL)
    commit = folder.read(info, "state")
    value = commit if part == "state" else folder.read(info, part)
    change(value)
    if part != "state":
        encoded = Hdf5Recorder().encode(value)
        (folder.path / info.files[part]).write_bytes(b"".join(encoded.pieces))
        commit["files"][part] |= {"size": encoded.size, "digest": encoded.digest}
    encoded = Hdf5Recorder().encode(commit)
    (folder.path / info.files["state"]).write_bytes(b"".join(encoded.pieces))


def assert_refused(directory: Path) -> str:
    """Nothing is changed by it; what is said."""
    learner = learner_in(directory)
    before, schedule, rest = everything(learner), inside(learner), vars(learner._replica.loop).copy()
    with pytest.raises((StateError, DamagedError)) as refused:
        learner.restore(LABEL)
    assert list(differences(before, everything(learner))) == []
    assert inside(learner) == schedule
    assert vars(learner._replica.loop).keys() == rest.keys()
    learner.step(2)  # it trains as if nothing had been
    return str(refused.value)


def test_the_run_itself_is_restored(directory: Path) -> None:
    rewrite(directory, "state", lambda commit: None)
    learner = learner_in(directory)
    learner.restore(LABEL)
    assert (learner.position.epoch, learner.position.step) == (2, 3)


SCHEDULES: dict[str, Change] = {
    "a method": lambda state: state.update(step=1.0),
    "the class": lambda state: state.update(__class__=1),
    "the optimizer": lambda state: state.update(optimizer={}),
    "a hook": lambda state: state.update(get_lr=[0.1]),
    "another kind": lambda state: state.update(last_epoch="9"),
    "rates that are none": lambda state: state.update(_last_lr=[{}]),
    "phases that are none": lambda state: state.update(_schedule_phases={"a": 1}),
    "a phase of its own": lambda state: state["_schedule_phases"][0].update(__init__=1),
}


@pytest.mark.parametrize("what", SCHEDULES)
def test_a_scheduler_takes_only_what_it_has(what: str, directory: Path) -> None:
    rewrite(directory, "scheduler", SCHEDULES[what])
    assert_refused(directory)


def _part(name: str, change: Change) -> tuple[str, Change]:
    return "state", lambda commit: change(commit["parts"][name])


STATES: dict[str, tuple[str, Change]] = {
    "no parts": ("state", lambda commit: commit.update(parts=[])),
    "one part less": ("state", lambda commit: commit["parts"].pop("rng")),
    "a position that is none": ("state", lambda commit: commit["position"].update(epoch="x")),
    "a position in no split": ("state", lambda commit: commit["position"].update(split=["train"])),
    "a position before the first": ("state", lambda commit: commit["position"].update(step=-1)),
    "no passes": ("state", lambda commit: commit.pop("passes")),
    "a pass of minus one step": ("state", lambda commit: commit["passes"][0].__setitem__(2, -1)),
    "a pass whose values are none": (
        "state",
        lambda commit: commit["passes"][0].__setitem__(3, {"Loss": "x"}),
    ),
    "passes as long as the universe": ("state", lambda commit: commit["passes"][0].__setitem__(2, 2**60)),
    "a random state of another length": _part(
        "rng", lambda rng: rng["host"].update(torch=rng["host"]["torch"][:9])
    ),
    "a random state beyond its end": _part(
        "rng", lambda rng: rng["host"]["numpy"]["state"].update(pos=10**6)
    ),
    "a random state before its start": _part("rng", lambda rng: rng["host"]["numpy"]["state"].update(pos=-5)),
    "another generator": _part("rng", lambda rng: rng["host"]["numpy"].update(bit_generator="PCG64")),
    "a loader's random state of another length": _part(
        "data train",
        lambda at: at["start"]["rng"]["host"].update(torch=at["start"]["rng"]["host"]["torch"][:9]),
    ),
    "a loader's random state beyond its end": _part(
        "data train", lambda at: at["start"]["rng"]["host"]["numpy"]["state"].update(pos=10**6)
    ),
    "a loader before its start": _part("data train", lambda at: at.update(step=-1)),
    "a loader beyond its end": _part("data train", lambda at: at.update(step=10**15)),
    "a loader at no step": _part("data train", lambda at: at.update(step="3")),
    "a loop beyond its end": _part("loop", lambda loop: loop.update(done=10**15)),
    "a loop in no split": _part("loop", lambda loop: loop.update(split="test")),
    "a loop in no epoch": _part("loop", lambda loop: loop.update(epoch="x")),
    "a loop elsewhere than its loader": _part("loop", lambda loop: loop.update(done=1)),
    "a window of minus one batch": _part("window", lambda window: window.update(count=-1)),
    "a window of other gradients": _part("window", lambda window: window.update(grads=[])),
    "sums that are none": _part("metrics train", lambda group: group["sums"].update(Loss="x")),
    "an early stopping that waited long": _part("early_stopping", lambda state: state.update(waited="x")),
    "optimizer groups without a rate": ("optim", lambda state: state["groups"][0].pop("lr")),
    "optimizer groups of another number": ("optim", lambda state: state.update(groups=state["groups"] * 2)),
    "optimizer groups with other keys": ("optim", lambda state: state["groups"][0].update(params=[1])),
    "moments without names": ("optim", lambda state: state["state"][0].update(values={1: 2.0})),
    "moments that are a tensor": ("optim", lambda state: state["state"].__setitem__(0, torch.ones(2))),
    "moments without values": ("optim", lambda state: state["state"][0].update(values=torch.ones(2))),
    "a number of steps that is a tensor": _part("loop", lambda loop: loop.update(trained=torch.ones(2))),
    "a number of steps that is a list": _part("loop", lambda loop: loop.update(trained=[torch.ones(2)])),
    "an object with a list for a name": _part("carried", lambda part: part["objects"][0].__setitem__(0, [])),
    "an object with a number for a name": _part("carried", lambda part: part["objects"][1].__setitem__(0, 7)),
    "an object of no kind": _part("carried", lambda part: part["objects"][0].__setitem__(2, ["list"])),
    "an object with nothing to say": _part("carried", lambda part: part["objects"][0].__setitem__(1, None)),
    "a function with a number for a name": _part(
        "shape", lambda shape: shape.update(functions=[["loss", 7, ""]])
    ),
    "a function without a name": _part("shape", lambda shape: shape.update(functions=[["loss"]])),
    "functions that are a number": _part("shape", lambda shape: shape.update(functions=7)),
    "places that are numbers": _part("metrics train", lambda group: group.update(objects={"Loss": 7})),
    "places that are a list": _part("metrics train", lambda group: group.update(objects=["Loss"])),
    "a model without tensors": ("model", lambda state: state.update(tensors=[])),
    "a model of lists": ("model", lambda state: state["tensors"].update({"0.bias": [0.0] * 8})),
    "extra state for who takes none": ("model", lambda state: state["extra"].update({"0": 1})),
}


@pytest.mark.parametrize("what", STATES)
def test_a_state_that_is_none_changes_nothing(what: str, directory: Path) -> None:
    rewrite(directory, *STATES[what])
    assert_refused(directory)


def _kept(change: Change) -> tuple[str, Change]:
    return "optim", lambda state: change(state["state"][0]["values"])


MOMENTS: dict[str, tuple[str, Change]] = {
    "a moment is missing": _kept(lambda kept: kept.pop("exp_avg")),
    "all of them are missing but one": _kept(lambda kept: kept.pop("exp_avg") is kept.pop("exp_avg_sq")),
    "a moment of another shape": _kept(lambda kept: kept.update(exp_avg=torch.zeros(5, 5))),
    "a moment that is a number": _kept(lambda kept: kept.update(exp_avg=0.5)),
    "a moment that is nothing": _kept(lambda kept: kept.update(exp_avg_sq=None)),
    "no count of steps": _kept(lambda kept: kept.pop("step")),
    "a count that is nothing": _kept(lambda kept: kept.update(step=None)),
    "a count that is a text": _kept(lambda kept: kept.update(step="9")),
    "a count of many numbers": _kept(lambda kept: kept.update(step=torch.ones(3))),
    "a count before the first": _kept(lambda kept: kept.update(step=torch.tensor(-1.0))),
    "an option that asks for what is not there": (
        "optim",
        lambda state: state["groups"][0].update(amsgrad=True),
    ),
    "an option that is none": ("optim", lambda state: state["groups"][0].update(betas=("a", 0.9))),
}


def test_no_tensor_of_a_file_is_written_out_for_which_torch_loads_further_code(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_out(tensor: Any, **options: Any) -> str:
        raise AssertionError("a tensor of the file is made into text")

    rewrite(directory, *_kept(lambda kept: kept.update(exp_avg=[torch.zeros(3)])))
    monkeypatch.setattr(torch.Tensor, "__repr__", written_out)
    told = assert_refused(directory)
    assert "what Adam cannot have kept" in told and "exp_avg a list" in told


@pytest.mark.parametrize("what", MOMENTS)
def test_what_would_make_the_optimizers_next_step_fail_is_refused_and_named(
    what: str, directory: Path
) -> None:
    rewrite(directory, *MOMENTS[what])
    told = assert_refused(directory)
    assert f"checkpoint {LABEL} holds for the optimizer what Adam cannot have kept" in told
    assert "at the parameter 0.weight (" in told and "Go on from another checkpoint" in told


@pytest.mark.parametrize(
    "name", ["Adadelta", "Adagrad", "Adam", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"]
)
def test_every_optimizer_of_torch_is_tried_out_and_none_of_its_own_states_is_refused(name: str) -> None:
    from notebook_learner.event.position import Position
    from notebook_learner.state.state import ModelPart, OptimizerPart, State
    from notebook_learner.state.validation import rehearse

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.PReLU())
    model.scale = torch.nn.Parameter(torch.ones(()))
    optimizer = getattr(torch.optim, name)(model.parameters())
    heard: list[Any] = []
    optimizer.register_step_pre_hook(lambda *given: heard.append(given))
    for _ in range(2):
        (model(torch.ones(2, 3)).sum() * model.scale).backward()
        optimizer.step()
    parts = {"model": ModelPart(model), "optimizer": OptimizerPart(optimizer)}
    heard.clear()

    def tried(change: Change) -> None:
        state = {name: part.capture() for name, part in parts.items()}
        change(state["optimizer"]["state"])
        rehearse(parts, State(Position(1, "train", 2, 2), state), "it")

    before = optimizer.state_dict()
    tried(lambda states: None)
    for key in before["state"][0]:
        for number in range(4):
            with pytest.raises(StateError):
                tried(lambda states, key=key, number=number: states[number]["values"].pop(key))
            with pytest.raises(StateError):
                tried(lambda states, key=key, number=number: states[number]["values"].update({key: "x"}))
            with pytest.raises(StateError):
                tried(
                    lambda states, key=key, number=number: states[number]["values"].update(
                        {key: torch.ones(7, 7)}
                    )
                )
    assert str(optimizer.state_dict()) == str(before) and heard == []


COMMITS: dict[str, Change] = {
    "another label": lambda commit: commit.update(label="7"),
    "another epoch": lambda commit: commit.update(epoch=7),
    "another step": lambda commit: commit.update(step=10**9),
    "a negative sequence": lambda commit: commit.update(sequence=-1),
    "a sequence of a thousand digits": lambda commit: commit.update(sequence=10**1000),
    "a truth for a number": lambda commit: commit.update(iteration=True),
    "a time beyond the calendar": lambda commit: commit.update(saved_at=1e300),
    "a time that is none": lambda commit: commit.update(saved_at=float("nan")),
    "an unknown kind": lambda commit: commit.update(kind="x"),
    "an unknown split": lambda commit: commit.update(split="../x"),
    "metrics that are texts": lambda commit: commit.update(metrics={"valid": {"Loss": "x"}}),
    "metrics that are lists": lambda commit: commit.update(metrics={"valid": [1]}),
    "a part outside": lambda commit: commit["files"].update({"../../x": commit["files"]["model"]}),
    "a size that is negative": lambda commit: commit["files"]["model"].update(size=-1),
    "a rule that is none": lambda commit: commit.update(best={"metric": "Loss"}),
    "a rule of no direction": lambda commit: commit.update(
        best={"metric": "Loss", "split": "valid", "mode": "x"}
    ),
}


@pytest.mark.parametrize("what", COMMITS)
def test_a_commit_that_lies_is_listed_as_damaged(what: str, directory: Path) -> None:
    rewrite(directory, "state", COMMITS[what])
    folder = CheckpointFolder(directory / "checkpoint")
    *_, info = folder.list()
    assert info.label == LABEL and info.damage
    assert folder.find("latest").label == folder.find("best").label == "1"
    with pytest.raises(DamagedError):
        folder.read(info, "model")


def test_a_name_in_a_commit_file_is_not_followed(directory: Path) -> None:
    outside = directory.parent / "outside.h5"
    outside.write_bytes(b"secret")
    for name in ("../../outside.h5", str(outside)):
        rewrite(directory, "state", lambda commit, name=name: commit["files"]["model"].update(name=name))
        folder = CheckpointFolder(directory / "checkpoint")
        info = folder.find(LABEL)
        assert info.files["model"] == f"model-{LABEL}.h5"
        assert set(folder.read(info, "model")) == {"tensors", "extra"}


def test_every_refusal_is_one_of_ours() -> None:
    assert issubclass(StateError, NotebookLearnerError) and issubclass(DamagedError, NotebookLearnerError)

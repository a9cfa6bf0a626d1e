"""What keeps a run from going on in a process of its own is told here; the learner stands where it stood."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builder_support import batches, classifier, net, sgd
from detach_support import Gate, interrupted_inside, steered, until_it_ends, values_in, waiting, waits_for
from exactness import Setup, differences, everything, straight

from notebook_learner import BusyError, ConfigurationError, DetachError, Learner, Paused, StateError
from notebook_learner.checkpoint import CompactRecorder
from notebook_learner.learner import hand_over as handing
from notebook_learner.remote.detached import noted_in

FULL = Setup(seed=None, window=2, scheduler="cycle", ema=True)
Owned = Callable[[Learner], Learner]


def assert_trains_on(setup: Setup, learner: Learner, root: Path) -> None:
    learner.fit()
    final, written = straight(setup, root / "straight")
    assert list(differences(everything(learner), final)) == []
    assert values_in(root / "run") == written


class Here:
    """Comes apart where it is sent to another process: there, or here already."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        if self.where == "here":
            raise TypeError("it holds a lock")
        return FAILURES[self.where], ()


def _fails() -> None:
    raise FileNotFoundError("no such data set")


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _dies_among_modules() -> None:
    """As faulthandler tells it where a thousand modules of others are loaded: the list is its last line."""
    modules = ", ".join(f"scipy.special.module_{i}" for i in range(1000))
    print(f"Fatal Python error: the cause\n\nExtension modules: {modules} (total: 1000)", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


FAILURES = {"there": _fails, "it dies": _dies, "it dies among modules": _dies_among_modules}


@pytest.mark.parametrize(
    ("where", "error", "told"),
    [
        ("here", ConfigurationError, r"the model \(Sequential\) cannot be sent.*TypeError: it holds a lock"),
        ("there", DetachError, r"(?s)could not go on.*Traceback.*FileNotFoundError: no such data set"),
        ("it dies", DetachError, r"(?s)was killed by SIGSEGV before it trained.*Segmentation fault"),
        ("it dies among modules", DetachError, r"(?s)was killed by SIGKILL before it trained.*the cause$"),
    ],
)
@pytest.mark.rounds(2)
def test_what_cannot_be_sent(
    where: str, error: type[Exception], told: str, tmp_path: Path, owned: Owned
) -> None:
    learner = owned(FULL.learner(tmp_path / "run"))
    learner.step(4)
    learner.model.odd = Here(where)  # type: ignore[assignment]
    with pytest.raises(error, match=told):
        learner.detach()
    assert noted_in(tmp_path / "run") is None, "it was told nothing of the directory"
    del learner.model.odd
    assert_trains_on(FULL, learner, tmp_path)


def test_a_background_run_goes_on_where_it_could_not_be_handed_over(tmp_path: Path) -> None:
    learner = FULL.learner(tmp_path / "run")
    learner.model.odd = Here("here")  # type: ignore[assignment]
    learner.start()
    with pytest.raises(ConfigurationError):
        learner.detach()
    learner.wait()
    assert learner.status == "finished"
    del learner.model.odd
    assert_trains_on(FULL, learner, tmp_path)


def test_a_step_that_fails_at_once_is_told_here(tmp_path: Path, owned: Owned) -> None:
    """Then the process had the directory already."""
    learner = owned(FULL.learner(tmp_path / "run"))
    learner.step(4)
    loaders: Any = learner._supplies
    good = loaders.settings.loss
    home = os.getpid()

    def bad(output: Any, target: Any) -> Any:
        assert os.getpid() == home, "not here"
        return good(output, target)

    loaders.settings.loss = bad
    loaders.renew()
    with pytest.raises(DetachError, match=r"(?s)could not go on.*assert os\.getpid\(\) == home.*not here"):
        learner.detach()
    assert noted_in(tmp_path / "run") is None
    assert learner.position.step == 4
    assert steered(tmp_path / "run", "status").startswith("paused at epoch 1, train, step 4")
    assert_trains_on(FULL, learner, tmp_path)


def test_an_interrupt_calls_it_off(tmp_path: Path, owned: Owned) -> None:
    learner = owned(FULL.learner(tmp_path / "run"))
    learner.step(4)
    button = interrupted_inside(Learner.detach)
    with pytest.raises(Paused):
        learner.detach()
    button.join()
    assert_trains_on(FULL, learner, tmp_path)


@pytest.mark.parametrize("what", ["another directory", "a newer checkpoint"])
@pytest.mark.rounds(1)
def test_who_comes_between_is_noticed(
    what: str, tmp_path: Path, owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of before, say, which does not ask whether a run was detached."""
    run = tmp_path / "run"
    learner = owned(FULL.learner(run))
    learner.step(4)
    begin = handing._begin

    def between(*given: Any) -> None:
        if what == "another directory":
            begin(given[0], _Otherwise(given[1]), *given[2:])  # type: ignore[arg-type]
        else:
            begin(given[0], given[1], "1-2", *given[3:])

    monkeypatch.setattr(handing, "_begin", between)
    told = "another directory by now" if what == "another directory" else "has gone on with it meanwhile"
    with pytest.raises(DetachError, match=told):
        learner.detach()
    assert_trains_on(FULL, learner, tmp_path)


class _Otherwise:
    """Tells of another directory than there is."""

    def __init__(self, process: Any) -> None:
        self._process = process

    def tell(self, **what: Any) -> None:
        self._process.tell(**{**what, "identity": [1, 1]})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


def test_a_second_builder_on_the_directory_is_told_who_has_it_and_can_take_it_back(
    tmp_path: Path, owned: Owned
) -> None:
    run, setup = tmp_path / "run", replace(FULL, seed=7, files=True)
    learner = owned(setup.learner(run))
    loaders: Any = learner._supplies
    loaders.settings.loss = Gate(tmp_path / "open", after=3)
    loaders.renew()
    report = learner.detach()
    with pytest.raises(BusyError, match=rf"goes on in process {report.pid}.*notebook-learner ctl .* stop`"):
        setup.learner(run, "latest")
    model = net()
    other = classifier(run).build(model, sgd(model), None, batches())
    with pytest.raises(BusyError, match=rf"process {report.pid}(?s:.*)resume\(take_back=True\)"):
        other.fit()
    waits_for(waiting(tmp_path / "open").exists)
    (tmp_path / "open").touch()
    model = net()
    builder = classifier(run).metrics().num_epochs(2).resume(take_back=True)
    with pytest.raises(ConfigurationError):  # another model; and the process has saved what there is
        builder.build(model, sgd(model), None, batches())
    ended = until_it_ends(run, report.pid)
    assert ended.ended == "stopped"
    mine = setup.learner(run, "latest")
    assert mine.position.iteration >= 4
    assert_trains_on(setup, mine, tmp_path)
    with pytest.raises(Exception, match="a newer learner has gone on with the run"):
        learner.take_back()


def test_what_is_over_or_cannot_be_exact_is_not_handed_over(tmp_path: Path) -> None:
    model = net()
    learner = classifier(tmp_path / "run").build(model, sgd(model), None, batches())
    learner.fit()
    with pytest.raises(StateError, match=r"training is finished: .*detach\(epochs=n\)"):
        learner.detach()
    with pytest.raises(ValueError, match="at least one epoch"):
        learner.detach(epochs=0)
    half = classifier(tmp_path / "half").with_file_checkpointer(CompactRecorder())
    model = net()
    with pytest.raises(ConfigurationError, match="CompactRecorder saves in half precision"):
        half.build(model, sgd(model), None, batches()).detach()


def test_data_and_epochs_may_be_given_as_to_fit(tmp_path: Path, owned: Owned) -> None:
    torch.manual_seed(0)
    model = net()
    learner = owned(classifier(tmp_path / "run").build(model, sgd(model)))
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        learner.detach(epochs=3)
    assert learner.num_epochs == 1
    learner.detach(batches(), batches()[:1], epochs=3)
    assert until_it_ends(tmp_path / "run").ended == "finished"
    learner.take_back()
    assert (learner.num_epochs, str(learner.position)) == (3, "epoch 3, valid, step 1 of 1")


def test_without_the_package_that_packs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = handing.importlib.util.find_spec
    monkeypatch.setattr(
        handing.importlib.util, "find_spec", lambda name: None if name == "cloudpickle" else find(name)
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'notebook_learner\[devices\]'"):
        FULL.learner(tmp_path).detach()

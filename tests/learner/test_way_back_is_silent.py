"""Steps that are taken again print, display and draw nothing, and open no debugger, unless asked."""

from __future__ import annotations

import bdb
import logging
import pdb
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from builder_support import adam, batches, net, quiet
from outside import Outside

from notebook_learner import Learner, Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.event import Event, SetProgress
from notebook_learner.metric import Loss
from notebook_learner.run import replay
from notebook_learner.run.unheard import aloud, unheard


class Talking(Outside):
    """A step that prints, and may stop or fail."""

    def __init__(self) -> None:
        super().__init__(None)
        self.calls = 0
        self.fails_at = 0

    def __call__(self, model: Any, batch: Any) -> Any:
        self.calls += 1
        print(f"call {self.calls}")
        print(f"error {self.calls}", file=sys.stderr)
        breakpoint()
        if self.calls == self.fails_at:
            raise ValueError("on purpose")
        return F.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a debugger was opened."""
    times: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *given, **named: times.append(1))
    return times


def build(folder: Path, step: Talking, renderer: Any = "silent") -> Learner:
    model = net()
    builder = quiet(folder).metrics(Loss()).train_step(step).num_epochs(3).renderer(renderer)
    return builder.build(model, adam(model), None, batches((2,) * 20))


def test_a_rewind_is_silent_and_opens_no_debugger(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    step = Talking()
    learner = build(tmp_path, step)
    learner.step(6)
    before, hook, stream = capsys.readouterr(), sys.breakpointhook, sys.stdout
    assert before.out.splitlines() == [f"call {n}" for n in range(1, 7)] and len(opened) == 6
    report = learner.rewind(2)
    assert report.replayed and step.calls == 6 + report.replayed, "they were taken again"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "") and len(opened) == 6
    assert f"{report.replayed} steps replayed" in str(report)
    assert (sys.breakpointhook, sys.stdout) == (hook, stream) and "write" not in vars(stream)
    learner.step()
    assert capsys.readouterr().out == f"call {step.calls}\n" and len(opened) == 7


def test_a_step_that_fails_prints_its_forerunners_once(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    step = Talking()
    step.fails_at = 6
    learner = build(tmp_path, step)
    with pytest.raises(ValueError, match="on purpose"):
        learner.fit()
    assert capsys.readouterr().out.splitlines() == [f"call {n}" for n in range(1, 7)]
    assert len(opened) == 6 and step.calls > 6
    step.fails_at = 0
    learner.step()
    assert capsys.readouterr().out.startswith("call ")


class Prints:
    """A display that says how far a way back came by a print of the very thread that takes it."""

    def handle(self, event: Event) -> None:
        if isinstance(event, SetProgress) and not event.over:
            print(event.what)


def test_how_far_it_came_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "PATIENCE", 0.0)
    learner = build(tmp_path, Talking(), Prints())
    learner.step(12)
    capsys.readouterr()
    learner.rewind(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines and {line.startswith("on the way back to ") for line in lines} == {True}


def test_other_threads_print_and_stop_as_ever(opened: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    def other() -> None:
        print("heard")
        sys.stdout.writelines(["this ", "too\n"])
        breakpoint()

    with unheard():
        print("silence")
        sys.stdout.writelines(["silence"])
        breakpoint()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        aloud(print)("aloud")
        print("silence", flush=True)
        assert sys.stdout.encoding
    aloud(print)("after")
    assert capsys.readouterr().out == "heard\nthis too\naloud\nafter\n" and len(opened) == 1


def test_two_threads_may_be_unheard_at_once_and_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with unheard():
            begun.set()
            over.wait()
            print("silence")

    with unheard():
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
    print("heard")
    over.set()
    thread.join()
    assert capsys.readouterr().out == "heard\n"
    assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)


def test_what_a_step_puts_in_the_stream_s_place_stays(opened: list[int]) -> None:
    mine, before = object(), (sys.stdout, sys.breakpointhook)
    try:
        with unheard():
            sys.stdout, sys.breakpointhook = mine, print  # type: ignore[assignment]
        assert (sys.stdout, sys.breakpointhook) == (mine, print)
    finally:
        sys.stdout, sys.breakpointhook = before


def test_logs_bars_and_debuggers_are_silent_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    std = pytest.importorskip("tqdm.std")
    handler, traced = logging.StreamHandler(sys.stderr), list[int]()
    monkeypatch.setattr(bdb.Bdb, "set_trace", lambda *given: traced.append(1))
    log, bar = logging.getLogger("a step"), std.tqdm(total=3, file=sys.stderr)
    log.addHandler(handler)

    def shown() -> str:
        log.warning("logged")
        bar.update()
        bar.refresh()
        pdb.Pdb().set_trace()
        said = capsys.readouterr()
        return str(said.out + said.err)

    try:
        shown()
        with unheard():
            assert shown() == "" and traced == [1]
        said = shown()
    finally:
        log.removeHandler(handler)
        bar.close()
    assert "logged" in said and "3/3" in said and len(traced) == 2


def test_figures_that_are_made_unheard_are_not_left_for_the_end_of_the_cell() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    hooks, mine = pyplot.rcParams["figure.hooks"], pyplot.figure()
    try:
        with unheard():
            theirs = pyplot.figure()
            pyplot.plot([1, 2])
            pyplot.show()
        assert pyplot.get_fignums() == [mine.number] and theirs.axes
        assert pyplot.rcParams["figure.hooks"] == hooks
    finally:
        pyplot.close(mine)


class Shell:
    """A shell of IPython with what `display` needs."""

    def __init__(self) -> None:
        self.display_pub = self
        self.got: list[str] = []

    def publish(self, data: Any, *given: Any, **named: Any) -> None:
        self.got.append(data["text/plain"])

    def clear_output(self, wait: bool = False) -> None:
        self.got.append("clear")


def test_nothing_is_displayed_unheard_and_no_output_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    shell = Shell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    with unheard():
        shell.display_pub.publish({"text/plain": "silence"})
        shell.display_pub.clear_output()
    shell.display_pub.publish({"text/plain": "shown"})
    assert shell.got == ["shown"] and vars(shell).keys() == {"display_pub", "got"}


def test_a_rewind_that_is_asked_to_shows_what_its_steps_print(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    learner = build(tmp_path, Talking())
    learner.step(6)
    capsys.readouterr()
    report = learner.rewind(2, replay_output=True)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == len(said.err.splitlines()) == report.replayed > 0
    assert len(opened) == 6 + report.replayed


def test_steps_that_are_tried_aside_are_silent_and_a_dry_step_is_not(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    learner = build(tmp_path, Talking())
    learner.step(6)
    capsys.readouterr()
    opened.clear()
    learner.what_if(steps=2, lr=0.5)
    learner.verify(1)
    learner.inspect()
    learner.tools.lr_find(steps=12)
    learner.tools.ask(lambda learner: print("asked"), steps=(2, 3))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("asked\nasked\n", "") and not opened
    learner.tools.try_step()
    assert capsys.readouterr().out.startswith("call ") and opened


def test_an_error_in_a_replay_is_told(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    step = Talking()
    learner = build(tmp_path, step)
    learner.step(6)
    step.fails_at = step.calls + 1
    with pytest.raises(ValueError, match="on purpose"):
        learner.rewind(2)


def test_steps_that_are_taken_again_to_find_a_breakpoint_s_step_print_once(
    tmp_path: Path, opened: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Talking):
        def __call__(self, model: Any, batch: Any) -> Any:
            print("step", end=";")
            loss = F.cross_entropy(model(batch[0]), batch[1])
            return loss * float("nan") if batch[0] is bad else loss

    data = batches((2,) * 20)
    bad, model = data[10][0], net()
    builder = quiet(tmp_path).train_step(Broken()).num_epochs(1).renderer("silent").break_on(NonFinite())
    learner = builder.build(model, adam(model), None, data)
    with pytest.raises(Paused, match="NonFinite"):
        learner.fit()
    assert learner.position.step == 10
    assert capsys.readouterr().out.count("step") <= 20, "the block that was taken was heard once"

"""Steps that are taken again on a way back neither print again nor open a debugger again."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from builder_support import adam, batches, net, quiet
from outside import Outside

from notebook_learner import Learner
from notebook_learner.event import Event, SetProgress
from notebook_learner.metric import Loss
from notebook_learner.run import replay
from notebook_learner.run.replay import Unheard


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
    assert said.out == "" and len(opened) == 6
    assert len(said.err.splitlines()) == report.replayed, "what goes wrong is shown"
    assert (sys.breakpointhook, sys.stdout) == (hook, stream)
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

    with Unheard() as unheard:
        print("silence")
        sys.stdout.writelines(["silence"])
        breakpoint()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        unheard.aloud(print)("aloud")
        print("silence", flush=True)
        assert sys.stdout.encoding
    unheard.aloud(print)("after")
    assert capsys.readouterr().out == "heard\nthis too\naloud\nafter\n" and len(opened) == 1


def test_what_a_step_puts_in_the_stream_s_place_stays(opened: list[int]) -> None:
    mine, before = object(), (sys.stdout, sys.breakpointhook)
    try:
        with Unheard():
            sys.stdout, sys.breakpointhook = mine, print  # type: ignore[assignment]
        assert (sys.stdout, sys.breakpointhook) == (mine, print)
    finally:
        sys.stdout, sys.breakpointhook = before

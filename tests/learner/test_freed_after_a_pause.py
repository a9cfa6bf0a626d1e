"""A learner whose training was interrupted is freed when its name goes, whatever keeps the traceback."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from builder_support import adam, batches, classifier, net

from notebook_learner import Learner, Paused
from notebook_learner.breakpoint import MetricIs
from notebook_learner.metric import Loss

sys.path.append(str(Path(__file__).parents[1] / "widget"))
from kernels import INSTALLED, Page, python_of

HERE = Path(__file__).parent
SETUP = f"""
import gc, os, signal, sys, threading, weakref
sys.path.insert(0, {str(HERE)!r})
import torch
torch.set_num_threads(1)
from builder_support import adam, batches, classifier, net
from notebook_learner.metric import Loss

def interrupted(folder):
    "A learner that is interrupted in its fifth step, as by the button."
    model, calls = net(), []
    def press(*given):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
    model.register_forward_pre_hook(press)
    builder = classifier(folder).metrics(Loss()).num_epochs(50)
    return builder.build(model, adam(model), None, batches(), batches()[:2])
"""
VERBS = [
    "learner.fit()",
    "learner.step(100)",
    "learner.step_epoch()\nlearner.step_epoch()",
    "learner.run_until((30, 0))",
    "learner.start()\nlearner.wait()",
    "%%train learner --steps 100\nx, y = batch\noutput = model(x)\nloss = F.cross_entropy(output, y)",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(python_of(INSTALLED), tmp_path_factory.mktemp("kernel"))
    page.run(f"{SETUP}\nimport torch.nn.functional as F\n%load_ext notebook_learner")
    yield page
    page.leave()


@pytest.mark.parametrize("verb", VERBS)
def test_in_a_kernel_by_the_very_next_cell(page: Page, verb: str, tmp_path: Path) -> None:
    page.run(f"learner = interrupted({str(tmp_path)!r}); ref = weakref.ref(learner)")
    cell = page.begin(verb)
    page.end(cell)
    assert str(page.error(cell)).startswith("Paused: paused at epoch ")
    assert page.run("del learner; gc.collect(); print(ref() is None)") == "True\n"


def test_a_user_who_keeps_the_pause_keeps_no_learner(tmp_path: Path) -> None:
    """As Python's prompt does in sys.last_value."""
    learner, kept = built(tmp_path), []
    learner.breakpoints.add(MetricIs("Loss", "<", 1e9))
    try:
        learner.fit()
    except Paused as paused:
        kept.append(paused)
    try:
        learner.start()
        learner.wait()
    except Paused as paused:
        kept.append(paused)
    assert len(kept) == 2
    ref = weakref.ref(learner)
    del learner
    gc.collect()
    assert ref() is None


def built(folder: Path) -> Learner:
    model = net()
    builder = classifier(folder).metrics(Loss()).num_epochs(3)
    return builder.build(model, adam(model), None, batches())


SCRIPT = """
learner = interrupted(sys.argv[1])
ref = weakref.ref(learner)
try:
    learner.fit()
except KeyboardInterrupt as paused:
    sys.last_value, sys.last_traceback = paused, paused.__traceback__
del learner
gc.collect()
print(ref() is None)
"""


HANGS = """
def hangs(folder):
    "A learner whose fifth step hangs until it is broken off, by a second press of the button."
    model, calls = net(), []
    def press(*given):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
    model.register_forward_pre_hook(press)
    builder = classifier(folder).metrics(Loss()).num_epochs(50)
    return builder.build(model, adam(model), None, batches(), batches()[:2])

verbs = "fit()", "step(100)", "run_until((30, 0))", "run_until(lambda learner: False)"
for number, verb in enumerate(verbs):
    learner = hangs(f"{sys.argv[1]}/{number}")
    ref, model = weakref.ref(learner), weakref.ref(learner.model)
    try:
        exec(f"learner.{verb}")
    except KeyboardInterrupt as broken:
        sys.last_value, sys.last_traceback = broken, broken.__traceback__
        frames = []
        trace = broken.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        (users,) = [frame for frame in frames if frame.f_code.co_name == "press"]
        assert users.f_locals["calls"], "the user's own frame is whole"
        assert "The learner stands" in str(getattr(broken, "__notes__", ()))
        del frames, trace, users
    del learner
    gc.collect()
    print(ref() is None)
"""


def test_after_a_step_that_hung_was_broken_off(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + HANGS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n" * 4, done.stderr


def test_in_a_plain_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n", done.stderr

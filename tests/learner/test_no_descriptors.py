"""Where a process may open no more files, every verb says so, and what to do."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from notebook_learner.errors import NotebookLearnerError, names_descriptors

SCRIPT = """
import os, resource, sys
sys.path.insert(0, {here!r})
from pathlib import Path
import matplotlib.pyplot
import torch._dynamo  # of torch, which optimizers load
from builder_support import adam, batches, classifier, net
from notebook_learner import Artifacts, NotebookLearnerError
from notebook_learner.remote import control

def built(name, begin=lambda builder: builder):
    model = net()
    builder = classifier(Path({root!r}, name)).num_epochs(3).with_file_checkpointer()
    return begin(builder).build(model, adam(model), None, batches(), batches()[:1])

def stands(name):
    learner = built(name)
    learner.step(7)
    learner.save()
    return learner

def told_without(name, verb):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Below all that are open: also where a thread gives one back meanwhile there is none to be had.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        verb()
        told = "done"
    except NotebookLearnerError as error:
        told = f"{{type(error).__name__}}: {{error}}"
    except BaseException as error:
        told = f"bare {{error!r}}"
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    print(name, told.replace("\\n", " "), sep="|", flush=True)

told_without("the first build", lambda: built("first"))
learner, other = stands("run"), stands("other")
other.stop()
built("other", lambda builder: builder.resume()).step(1)
run = Artifacts({root!r} + "/other")
history = run.history
verbs = {{
    # Each needs a module that nothing has loaded so far.
    "inspect": learner.inspect,
    "what_if": lambda: learner.what_if(steps=1, lr=0.1),
    "try_step": learner.tools.try_step,
    "detach": learner.detach,
    "load_model": lambda: run.load_model(net()),
    "state_dict": run.state_dict,
    "export": lambda: run.export({root!r} + "/exported.h5"),
    "compare": lambda: Artifacts.compare([run.directory]),
    "to_pandas": history.to_pandas,
    "plot": learner.plot,
    "summary": learner.summary,
    "evaluate": lambda: learner.evaluate(batches()[:1], name="again"),
    "checkpoints": lambda: learner.checkpoints,
    "save": learner.save,
    "restore": lambda: learner.restore(1),
    "rewind": lambda: learner.rewind(1),
    "fit": learner.fit,
    "resume": lambda: built("other", lambda builder: builder.resume()),
    "checkpoint": lambda: built("other", lambda builder: builder.checkpoint(1)),
    "a new run": lambda: built("new").step(),
    "overwrite": lambda: built("other", lambda builder: builder.overwrite()).step(),
    "ctl": lambda: control({root!r} + "/run", "status"),
    "repair": lambda: Artifacts({root!r} + "/other").repair(),
}}
for name, verb in verbs.items():
    told_without(name, verb)
while learner.status != "finished":  # what the last verb met may be told of once more
    try:
        learner.fit()
    except NotebookLearnerError:
        continue
print(learner.status)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted as Linux tells them")
def test_without_a_descriptor_every_verb_says_what_to_do_and_training_goes_on_afterwards(
    tmp_path: Path,
) -> None:
    text = SCRIPT.format(here=str(Path(__file__).parent), root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    *told, status = done.stdout.splitlines()
    assert status == "finished" and len(told) == 24
    for line in told:
        name, said = line.split("|", 1)
        assert said == "done" or "as many files open as the system allows. Close some" in said, line
        assert said != "done" or name in ("rewind", "summary"), line  # all of it is in memory


@pytest.mark.parametrize(
    ("place", "what"),
    [("runs/a.log", "'runs/a.log'"), (b"a.log", "'a.log'"), (5, "a file or directory"), (None, "a file or")],
)
def test_the_error_names_the_place_where_the_system_told_it(place: Any, what: str) -> None:
    @names_descriptors
    def opens() -> None:
        raise OSError(errno.EMFILE, "Too many open files", place)

    with pytest.raises(NotebookLearnerError, match=f"^{what}.* cannot be opened: this process has as many"):
        opens()


def test_any_other_error_is_left_as_it_is() -> None:
    error = OSError(errno.ENOSPC, "No space left on device")

    @names_descriptors
    def writes() -> None:
        raise error

    with pytest.raises(OSError) as raised:
        writes()
    assert raised.value is error and error.__cause__ is None

"""What a notebook's first line loads: this package, torch and numpy. What a user may never use waits.

Seconds would tell more of the machine than of the package, so the tests name modules.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DISPLAY = ("anywidget", "IPython", "ipykernel", "ipywidgets", "matplotlib", "rich")
OTHERS = ("h5py", "pandas", "psutil", "sklearn", "scipy", "torchmetrics")

TRAIN_SILENTLY = """
import torch
from notebook_learner import LearnerBuilder

model = torch.nn.Linear(2, 1)
builder = LearnerBuilder("run").loss(torch.nn.functional.mse_loss).renderer("silent")
learner = builder.build(model, torch.optim.SGD(model.parameters()))
learner.fit([(torch.ones(4, 2), torch.ones(4, 1))] * 2)
assert learner.status == "finished"
"""


def loaded_by(code, cwd):
    """The modules that a fresh interpreter holds after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def top_level(modules):
    return {module.split(".")[0] for module in modules}


@pytest.fixture(scope="module")
def after_import(tmp_path_factory):
    """As a notebook begins."""
    return loaded_by("from notebook_learner import *", tmp_path_factory.mktemp("import"))


@pytest.mark.parametrize(
    "code",
    [
        "import notebook_learner",
        "from notebook_learner import Paused, StateError",
        "import notebook_learner.command.steer",
        "from notebook_learner.remote import control",
    ],
)
def test_what_steers_a_run_from_elsewhere_loads_no_torch(code, tmp_path):
    assert top_level(loaded_by(code, tmp_path)) & {"torch", "numpy", *DISPLAY, *OTHERS} == set()


def test_it_loads_nothing_that_torch_and_numpy_do_not_load_but_itself(after_import, tmp_path):
    already = loaded_by("import torch, numpy, typing_extensions", tmp_path)
    added = top_level(after_import - already) - sys.stdlib_module_names
    assert added <= {"notebook_learner", "numpy"}  # numpy.typing, of numpy


@pytest.mark.parametrize("package", [*DISPLAY, *OTHERS])
def test_it_does_not_load(after_import, package):
    assert package not in top_level(after_import)


@pytest.mark.parametrize(
    "module",
    [
        "torch._dynamo",
        "torch._inductor",
        "notebook_learner.learner.wiring.assembly",
        "notebook_learner.renderer",
    ],
)
def test_it_does_not_load_what_only_some_trainings_need(after_import, module):
    assert module not in after_import


def test_a_training_that_shows_nothing_loads_no_display(tmp_path):
    assert top_level(loaded_by(TRAIN_SILENTLY, tmp_path)) & {*DISPLAY, "pandas"} == set()

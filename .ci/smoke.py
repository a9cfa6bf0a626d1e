"""What a user of the installed wheel does first, with nothing of the checkout at hand.

python -W error smoke.py                              trains, %%train, save, resume in another process
python -W error smoke.py --notebook 01_first_run.ipynb    runs this tutorial in a kernel, too
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import notebook_learner
from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Loss

BATCHES = [(torch.linspace(-1, 1, 32).reshape(8, 4) + i, torch.ones(8, 1)) for i in range(5)]


def check_files(absent: tuple[str, ...]) -> None:
    """The wheel brings its licences, and none of these packages."""
    home = Path(notebook_learner.__file__).parent
    assert "site-packages" in home.parts, home
    assert (home / "py.typed").is_file(), "py.typed is not in the wheel"
    files = importlib.metadata.files("notebook_learner") or []
    assert any(file.name == "LICENSE" for file in files), "LICENSE is not in the wheel"
    bundled = (home / "widget" / "static" / "LICENSES.txt").read_text()
    assert "uplot" in bundled and "Permission is hereby granted" in bundled, (
        "uPlot's licence is not in the wheel"
    )
    for package in absent:
        assert importlib.util.find_spec(package) is None, f"{package} came along"


def build(directory: str, *, resume: bool = False) -> Learner:
    """A model with dropout: a resume that loses random state ends in other bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    builder = LearnerBuilder(directory).metrics(Loss()).loss(nn.functional.mse_loss)
    builder.num_epochs(2).with_file_checkpointer()
    if resume:
        builder.resume()
    return builder.build(model, torch.optim.Adam(model.parameters(), lr=0.01), None, BATCHES)


def bits(learner: Learner) -> list[list[float]]:
    """All weights, as a file of text can hold them."""
    return [weight.flatten().tolist() for weight in learner.model.parameters()]


def in_another_process(*asked: str) -> str:
    """What this script prints when it is asked so."""
    command = [sys.executable, "-W", "error", __file__, *asked]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def check_resume() -> None:
    """A run that is saved amid an epoch ends, in a new process, in the bits of one that never stopped."""
    straight = build("straight")
    straight.fit()
    losses = straight.history["train", "Loss"]
    assert len(losses) == 10 and losses[5:].mean() < losses[:5].mean(), losses
    straight.plot().savefig("curves.png")
    in_another_process("--begin", "stopped")
    told = in_another_process("--resume", "stopped")
    assert told.splitlines()[-1] == repr(bits(straight)), "resuming gave other weights"


def check_cell() -> None:
    """`%%train` in IPython: the cell is the step."""
    learner = build("cell")
    shell = InteractiveShell.instance()
    shell.user_ns.update(learner=learner, F=nn.functional)
    shell.run_line_magic("load_ext", "notebook_learner")
    step = "x, y = batch\noutput = model(x)\nloss = F.mse_loss(output, y)\n"
    done = shell.run_cell(f"%%train learner --epochs 1\n{step}")
    done.raise_error()
    assert learner.status == "finished" or learner.position.epoch == 2, learner.position
    assert len(learner.history["train", "Loss"]) == 5


def check_notebook(notebook: Path) -> None:
    """Each cell of the tutorial runs in a kernel of this Python."""
    import nbformat
    from nbclient import NotebookClient

    cells = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(cells, timeout=300, kernel_name="python3", resources=resources).execute()


def main() -> None:
    """Do all of it, in the current folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--notebook", type=Path)
    parser.add_argument("--begin", help="begin a run in this directory, stop amid an epoch, save")
    parser.add_argument("--resume", help="finish the run in this directory and print its weights")
    asked = parser.parse_args()
    if asked.begin:
        learner = build(asked.begin)
        learner.step(7)
        learner.save()
        return
    if asked.resume:
        learner = build(asked.resume, resume=True)
        learner.fit()
        print(bits(learner))
        return
    developers = ("pytest", "hypothesis", "ruff", "mypy")
    check_files(developers if asked.notebook else (*developers, "sklearn", "pandas", "ipykernel"))
    check_resume()
    check_cell()
    if asked.notebook:
        check_notebook(asked.notebook)
    print(f"notebook_learner {notebook_learner.__version__} works on Python {platform.python_version()}")


if __name__ == "__main__":
    main()

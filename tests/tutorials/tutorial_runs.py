"""Runs a tutorial as a reader does who opens it and runs every cell, and makes the file that is committed."""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

LIMIT = 120
"""Seconds for one cell: a whole tutorial is to take less than that."""
FAILS = "raises-exception"
"""The tag of a cell that is meant to end with an error, as JupyterLab, nbclient and nbconvert know it."""
OURS = "notebook_learner_tutorial"
"""What the metadata call the note on what the outputs came from."""

WIDGET = "application/vnd.jupyter.widget-view+json"
# As on a page, where the panel stands in place of lines. No browser draws it here; what a file keeps
# of a run is the picture below it.
ENVIRONMENT = {
    "NOTEBOOK_LEARNER_FRONT_END": "page",
    "OMP_NUM_THREADS": "1",  # as in every test: small models, and numbers that stay as they are
}

# Run before the first cell. A warning is an error, and so is a question to another machine: an audit hook
# hears also what threads and C code ask for.
STARTUP = """
import sys, warnings

def _refuse_network(event, args, at={"socket.getaddrinfo": 0, "socket.connect": 1}):
    if event not in at:
        return
    place = args[at[event]]
    host = place[0] if isinstance(place, tuple) else place
    here = ("127.0.0.1", "localhost", "::1")
    if isinstance(host, str) and host not in here and host[:1] not in ("/", "\\0"):
        raise RuntimeError(f"a tutorial downloads nothing, and this one asks for {host}")

sys.addaudithook(_refuse_network)
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="ipykernel")  # what it has to say is not said to tutorials
warnings.filterwarnings("ignore", "There is no current event loop", module="tornado")  # Python 3.13.0
del sys, warnings, _refuse_network
"""


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell in a new kernel, in this folder; the notebook with the outputs of that.

    Raises:
        CellExecutionError: a cell failed that was not meant to, or warned.
    """
    ran = copy.deepcopy(notebook)
    for cell in code_cells(ran):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        ran,
        timeout=LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    with TemporaryDirectory() as profile:  # the user's own IPython has no say
        startup = Path(profile, "profile_default", "startup")
        startup.mkdir(parents=True)
        (startup / "strict.py").write_text(STARTUP)
        client.execute(env={**os.environ, **ENVIRONMENT, "IPYTHONDIR": profile})
    _tidy(ran)
    ran.metadata[OURS] = {"source": digest(ran)}
    return ran


def rewrite(file: Path) -> None:
    """Run a tutorial and keep its new outputs in its file."""
    with TemporaryDirectory() as folder:
        ran = run(nbformat.read(file, as_version=4), Path(folder))
    ran.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    ran.metadata.language_info = {"name": "python"}  # the version is that of the last run
    nbformat.write(ran, file)


def code_cells(notebook: NotebookNode) -> list[Any]:
    """Its cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: NotebookNode) -> str:
    """What stands for the code of all cells: outputs of other code than this are old ones."""
    return hashlib.sha256("\0".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()[:16]


def kinds(notebook: NotebookNode) -> list[list[str]]:
    """What each cell shows, by kind: numbers differ from one machine to the next, these do not."""
    return [[_kind(output) for output in cell.outputs] for cell in code_cells(notebook)]


def _kind(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.name)
    if output.output_type == "error":
        return f"error {output.ename}"
    return f"{output.output_type} {', '.join(sorted(output.data))}"


def _tidy(notebook: NotebookNode) -> None:
    """Leave out what needs the kernel, and what is empty."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.get("data", {}).pop(WIDGET, None) is not None:
                output.metadata.pop(WIDGET, None)
        cell.outputs = [output for output in cell.outputs if not _says_nothing(output)]


def _says_nothing(output: Any) -> bool:
    if "data" not in output:
        return False
    return dict(output.data) in ({}, {"text/plain": ""})

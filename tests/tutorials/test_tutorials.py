"""The tutorials: every cell of them runs, and their files hold what it showed and nothing else."""

from __future__ import annotations

import base64
import re

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from tutorial_runs import FAILS, NOTEBOOKS, OURS, WIDGET, code_cells, digest, kinds, run

MOST_BYTES = 300_000
"""A clone brings every version along, and GitHub shows no large ones."""
PLACES = re.compile(r"/(home|root|tmp|work|Users|opt|usr|var)/|[A-Z]:\\\\", re.MULTILINE)
"""A path on the machine that ran it."""
AGAIN = "run `python -m tests.tutorials.write` after an edit, and commit what it writes"

each_tutorial = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def committed(file):
    return nbformat.read(file, as_version=4)


def written(*cells):
    """A notebook of these code cells."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


# ------------------------------------------------------------------------------------ they are true


@pytest.mark.timeout(900)  # a cell that hangs is ended by nbclient before that
@each_tutorial
def test_it_runs_from_the_first_cell_to_the_last_and_shows_what_its_file_shows(file, tmp_path):
    notebook = committed(file)

    ran = run(notebook, tmp_path)

    failed = {cell.id for cell in code_cells(ran) if "error" in {one.output_type for one in cell.outputs}}
    meant = {cell.id for cell in code_cells(ran) if FAILS in cell.metadata.get("tags", [])}
    assert failed == meant
    assert [cell.source for cell in ran.cells] == [cell.source for cell in notebook.cells]
    for cell, now, then in zip(code_cells(ran), kinds(ran), kinds(notebook), strict=True):
        assert [one.text for one in cell.outputs if one.get("name") == "stderr"] == [], cell.id
        assert now == then, f"{cell.id} shows something else than its file says; {AGAIN}"


# ------------------------------------------------------------------------- their files can be read


@each_tutorial
def test_its_outputs_are_those_of_its_code(file):
    notebook = committed(file)
    assert notebook.metadata[OURS]["source"] == digest(notebook), AGAIN


@each_tutorial
def test_every_cell_was_run_once_and_in_order(file):
    counts = [cell.execution_count for cell in code_cells(committed(file))]
    assert counts == list(range(1, len(counts) + 1)), AGAIN


@each_tutorial
def test_its_file_is_valid_and_small_and_every_cell_has_a_name(file):
    notebook = committed(file)
    nbformat.validate(notebook)
    names = [cell.id for cell in notebook.cells]
    assert len(set(names)) == len(names)
    assert file.stat().st_size < MOST_BYTES


@each_tutorial
def test_it_shows_pictures_and_nothing_that_needs_a_kernel(file):
    notebook = committed(file)
    assert "widgets" not in notebook.metadata
    shown = [one.data for cell in code_cells(notebook) for one in cell.outputs if "data" in one]
    pictures = [data["image/png"] for data in shown if "image/png" in data]
    assert pictures
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert [data for data in shown if WIDGET in data] == []


@each_tutorial
def test_it_names_no_place_of_the_machine_it_ran_on(file):
    for cell in committed(file).cells:
        texts = [cell.source, *map(text_of, cell.get("outputs", ()))]
        found = [line for text in texts for line in text.splitlines() if PLACES.search(line)]
        assert found == [], cell.id


def text_of(output):
    """All that an output says in words."""
    words = {kind: text for kind, text in output.get("data", {}).items() if kind.startswith("text/")}
    return "\n".join([output.get("text", ""), *output.get("traceback", ()), *words.values()])


# ---------------------------------------------------------------------------- what runs them is strict


def test_a_warning_ends_a_tutorial(tmp_path):
    with pytest.raises(CellExecutionError, match=r"UserWarning\S*: soon gone"):
        run(written("import warnings", "warnings.warn('soon gone')"), tmp_path)


@pytest.mark.parametrize(
    "question",
    [
        "urllib.request.urlopen('https://example.org')",
        "socket.create_connection(('192.0.2.1', 80), timeout=1)",
    ],
)
def test_a_download_ends_a_tutorial(tmp_path, question):
    with pytest.raises(CellExecutionError, match="a tutorial downloads nothing"):
        run(written("import socket, urllib.request", question), tmp_path)


def test_the_panel_is_left_out_and_its_picture_stays(tmp_path):
    training = """
import torch
from notebook_learner import LearnerBuilder
model = torch.nn.Linear(2, 1)
batches = [(torch.ones(4, 2), torch.ones(4, 1))] * 3
builder = LearnerBuilder("runs/small").loss(torch.nn.functional.mse_loss).num_epochs(2)
learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
learner.fit(batches);
"""
    ran = run(written(training, "learner"), tmp_path)
    kept = ["display_data text/html, text/plain", "display_data image/png, text/plain"]  # epochs and curves
    assert kinds(ran) == [kept, kept]  # also below a cell that only shows the learner
    assert (tmp_path / "runs" / "small" / "artifacts.h5").is_file()


def test_other_code_has_another_digest():
    digests = [digest(written(*cells)) for cells in (("a", "b"), ("a", "c"), ("a", "b", "c"), ("ab",))]
    assert len(set(digests)) == 4
    assert digest(written("a", "b")) == digests[0]

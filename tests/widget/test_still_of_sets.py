"""The sets that were evaluated are part of what a saved notebook shows, in its picture and in its text."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import nbformat
import numpy as np
import pytest
import torch
from IPython.core.events import EventManager, available_events
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import v4
from page_of_messages import learner_in
from PIL import Image
from test_still import Page, learnt

from notebook_learner.event import Column, Evaluated, MetricBlock, MetricInfo, SplitRecord
from notebook_learner.renderer.drawn_table import fitted
from notebook_learner.renderer.summary import SetRow, set_table, sets_text
from notebook_learner.widget import notebook, still_panel
from notebook_learner.widget.notebook_renderer import NotebookRenderer
from notebook_learner.widget.still_panel import MOST_BYTES, Still

HERE = Path(__file__).parent


def measured(name: str, epoch: int = 3, **finals: float) -> Evaluated:
    """A set of twenty batches."""
    column = Column(np.full(20, 0.5), np.full(20, 4.0))
    block = MetricBlock(epoch, "valid", 1, 20, 700, {"Loss": column}, {}, 0.1)
    infos = (MetricInfo("Loss", "valid"), MetricInfo("Accuracy", "valid", "%", True))
    return Evaluated(name, epoch, "train", 7, SplitRecord(epoch, "valid", (block,), finals), infos)


TWO = [measured("clean", Loss=0.25, Accuracy=91.25), measured("noisy", Loss=1.5)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of tables in pictures, noted before figures are emptied."""
    words: list[str] = []
    emptied = Figure.clear

    def clear(figure: Figure, *args: Any, **options: Any) -> None:
        words.extend(text.get_text() for ax in figure.axes[-1:] for text in ax.texts)
        emptied(figure, *args, **options)

    monkeypatch.setattr(Figure, "clear", clear)
    return words


def drawn(sets: list[Evaluated], names: tuple[str, ...] = ("Loss", "Accuracy")) -> Page:
    page = Page()
    Still(page).update(learnt(4, 240, names), None, "Split  Metric", "digits", evaluated=sets)
    return page


# --------------------------------------------------------------------------------------- the table


def test_a_row_a_set_and_a_column_a_metric() -> None:
    assert sets_text(TWO).splitlines() == [
        "set      Loss  Accuracy  batches  weights of",
        "-----  ------  --------  -------  ----------------------",
        "clean  0.2500   91.25 %       20  epoch 3, train, step 7",
        "noisy   1.500                 20  epoch 3, train, step 7",
    ]


def test_without_sets_there_is_no_table() -> None:
    assert sets_text([]) == ""
    assert drawn([]).data["text/plain"] == "digits\n\nSplit  Metric"


def test_where_there_is_no_room_batches_go_first_then_places_then_the_last_metrics() -> None:
    rows = [SetRow("clean", {f"Metric {at}": "0.5000" for at in range(4)}, 20, "epoch 3, train, step 7")]
    heads = [fitted(set_table(rows), inches).headings for inches in (7.5, 6.4, 4.5, 3.1, 0.1)]
    metrics = [f"Metric {at}" for at in range(4)]
    assert heads == [
        ["set", *metrics, "batches", "weights of"],
        ["set", *metrics, "weights of"],
        ["set", *metrics],
        ["set", "Metric 0", "Metric 1", "2 more"],
        ["set", "Metric 0", "3 more"],
    ]


def test_of_many_sets_the_latest_are_drawn_and_the_others_counted() -> None:
    rows = [SetRow(f"set {at}", {"Loss": "1"}, 1, "") for at in range(20)]
    names = [row[0] for row in fitted(set_table(rows), 9.0).rows]
    assert names == ["13 earlier sets", *(f"set {at}" for at in range(13, 20))]


# ------------------------------------------------------------------------------ picture and text of it


def test_text_and_picture_say_the_same(written: list[str]) -> None:
    page = drawn(TWO)
    assert page.data["text/plain"] == f"digits\n\nSplit  Metric\n\n{sets_text(TWO)}"
    assert set(written) == {
        *("set", "Loss", "Accuracy", "batches", "weights of"),
        *("clean", "0.2500", "91.25 %", "20", "epoch 3, train, step 7"),
        *("noisy", "1.500", ""),
    }


@pytest.mark.parametrize("names", [("Loss",), ("Loss", "Accuracy"), tuple("abcdef")])
def test_the_table_has_room_below_the_curves(names: tuple[str, ...]) -> None:
    many = [
        measured(f"a set with quite a long name {at}", **dict.fromkeys("abcdef", 0.5)) for at in range(20)
    ]
    bare, page = drawn([], names), drawn(many, names)
    assert len(page.png) <= MOST_BYTES
    assert page.size["width"] == pytest.approx(bare.size["width"], abs=2)
    assert page.size["height"] - bare.size["height"] == pytest.approx(9 * 0.24 * 88, abs=35)
    ink = np.asarray(Image.open(io.BytesIO(page.png)).convert("RGBA"))[..., 3] > 0
    scale = len(ink) / page.size["height"]
    below = ink[-round(9.5 * 0.24 * 88 * scale) :]
    assert below[: round(3 * scale)].sum() == 0  # curves and table are apart
    assert below.any(1).mean() > 0.4
    assert not below[:, :3].any() and not below[:, -3:].any()  # nothing is cut off at the sides


def test_names_of_sets_and_metrics_stay_text(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MathTextParser, "parse", None)
    drawn([measured("$\\frac{1}{$ <b>\x1b[31m\n", **{"$x$ <i>": 1.0})])
    assert "$\\frac{1}{$ <b>[31m" in written and "$x$ <i>" in written


# ------------------------------------------------------------------------------------------ when


class Kernel:
    """A kernel that runs one cell, and tells those who asked when it is over."""

    def __init__(self) -> None:
        self.events = EventManager(self, available_events)
        self.header = {"msg_id": "1", "msg_type": "execute_request"}
        parent = {"header": self.header, "metadata": {}}
        self.kernel = SimpleNamespace(get_parent=lambda channel: parent)
        self.stills: list[dict[str, Any]] = []

    def end_cell(self) -> None:
        self.events.trigger("post_run_cell", None)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    here = Kernel()
    monkeypatch.delenv(notebook.CHOICE, raising=False)
    monkeypatch.setattr(IPython, "get_ipython", lambda: here)
    monkeypatch.setattr(still_panel, "display", lambda data, *_: here.stills.append(data))
    yield here


def a_set() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)]


def test_a_cell_that_evaluates_many_sets_draws_once_when_it_is_over(tmp_path: Path, kernel: Kernel) -> None:
    learner = learner_in(tmp_path)
    learner._shown_on(NotebookRenderer())
    learner.fit(epochs=1)
    kernel.end_cell()
    before = len(kernel.stills)
    for name in ("clean", "noisy", "other"):
        learner.evaluate(a_set(), name)
    assert len(kernel.stills) == before
    kernel.end_cell()
    kernel.end_cell()
    assert len(kernel.stills) == before + 1
    rows = kernel.stills[-1]["text/plain"].splitlines()[-3:]
    assert [row.split()[0] for row in rows] == ["clean", "noisy", "other"]


def test_what_no_cell_evaluates_is_drawn_at_once(tmp_path: Path, kernel: Kernel) -> None:
    learner = learner_in(tmp_path)
    learner._shown_on(NotebookRenderer())
    learner.fit(epochs=1)
    before = len(kernel.stills)
    kernel.header["msg_type"] = "comm_msg"
    learner.evaluate(a_set(), "clean")
    assert len(kernel.stills) == before + 1


# ------------------------------------------------------------------------------------- in a real notebook

CELLS = (
    f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
    "from page_of_messages import learner_in\nfrom test_still_of_sets import NotebookRenderer, a_set\n"
    "learner = learner_in('run')\nlearner._shown_on(NotebookRenderer())\nlearner.fit(epochs=2)",
    "found = learner.evaluate({'clean': a_set(), 'noisy': a_set()})",
    "print(found)",
)


@pytest.mark.soak
def test_a_notebook_that_ran_shows_the_sets_below_the_curves_also_in_its_html(tmp_path: Path) -> None:
    book = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    saved = nbformat.reads(nbformat.writes(book), as_version=4)
    pictures = [each for each in saved.cells[0].outputs if "image/png" in each.get("data", {})]
    (below_the_fit,) = pictures
    text, printed = below_the_fit.data["text/plain"], saved.cells[2].outputs[0].text
    assert text.endswith(printed.rstrip("\n"))
    assert "clean" in printed and "noisy" in printed
    bare = learnt_height(saved)
    assert below_the_fit.metadata["image/png"]["height"] > bare
    html, _ = HTMLExporter().from_notebook_node(saved)
    assert "data:image/png;base64," + below_the_fit.data["image/png"] in html
    assert base64.b64decode(below_the_fit.data["image/png"]).startswith(b"\x89PNG")


def learnt_height(saved: Any) -> int:
    """Pixels of the same picture without a table: two charts in a row, one under the other for more."""
    text = next(each for each in saved.cells[0].outputs if "image/png" in each.get("data", {}))
    charts = len(set(re.findall(r"^(?:train|valid) +(\S+)", text.data["text/plain"], re.MULTILINE)))
    return round((0.35 + 2.85 * -(-charts // 2)) * 88)

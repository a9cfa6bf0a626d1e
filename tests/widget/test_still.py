"""The still form of the panel: small, legible on light and dark, and there in every kind of notebook."""

from __future__ import annotations

import base64
import gc
import io
import random
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.mathtext import MathTextParser
from nbclient import NotebookClient
from nbconvert import HTMLExporter, LatexExporter
from nbformat import v4

from notebook_learner.event import Column, MetricBlock, MetricInfo, RunOpened, SplitEnded, SplitStarted
from notebook_learner.logger import History
from notebook_learner.widget import still_panel as module
from notebook_learner.widget.still_panel import MOST_BYTES, Still

HERE = Path(__file__).parent
WHITE, NIGHT = (1.0, 1.0, 1.0), (0x11 / 255,) * 3
NAN = float("nan")


def noisy(epoch, steps, epochs):
    """A curve that learns, a little differently with every step."""
    t = (epoch - 1 + np.arange(1, steps + 1) / steps) / epochs
    return 0.2 + 2 * np.exp(-5 * t) + 0.2 * np.random.default_rng(epoch).standard_normal(steps)


def learnt(epochs, steps, names=("Loss", "Accuracy"), values=noisy, unit="", history=None, first=1):
    """The history of a run that was measured without training."""
    if history is None:
        history = History()
        infos = tuple(MetricInfo(name, split, unit, False) for name in names for split in ("train", "valid"))
        history.handle(RunOpened("runs/x", "Net", 10, epochs, infos))
    for epoch in range(first, epochs + 1):
        for split, count in (("train", steps), ("valid", 1)):
            history.handle(SplitStarted(epoch, split, count, epochs))
            column = np.array(values(epoch, steps, epochs)[-count:], dtype=np.float64)
            columns = {name: Column(column, np.ones(count)) for name in names}
            history.handle(MetricBlock(epoch, split, 1, count, epoch * steps, columns, {}, 0.1))
            finals = {name: float(column[-1]) for name in names}
            history.handle(SplitEnded(epoch, split, count, finals))
    return history


@dataclass
class Page:
    """Remembers what is published, as a page would."""

    shown: list[tuple[dict[str, Any], dict[str, Any], str, bool]] = field(default_factory=list)

    def __call__(self, data, metadata, name, update):
        self.shown.append((data, metadata, name, update))

    @property
    def data(self):
        return self.shown[-1][0]

    @property
    def png(self):
        return self.data["image/png"]

    @property
    def size(self):
        return self.shown[-1][1]["image/png"]


def drawing_of(history, headline="digits · finished", table="", **options):
    page = Page()
    Still(page).update(history, None, table, headline, **options)
    return page


def pixels(png):
    """Colours and opacity, from 0 to 1."""
    image = imread(io.BytesIO(png), format="png")
    assert image.ndim == 3 and image.shape[2] == 4
    return image[..., :3], image[..., 3]


def luminance(colours):
    colours = np.asarray(colours, dtype=np.float64)
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(colours, ground):
    """The contrast of WCAG 2."""
    one, other = luminance(colours), luminance(ground)
    return (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)


@dataclass
class Seen:
    """What was in the figures, noted before they are emptied."""

    titles: list[str] = field(default_factory=list)
    headlines: list[str] = field(default_factory=list)
    points: list[int] = field(default_factory=list)


@pytest.fixture
def figures(monkeypatch):
    seen, emptied = Seen(), Figure.clear

    def clear(figure, *args, **options):
        seen.titles += [ax.get_title(loc="left") for ax in figure.axes]
        seen.headlines += [text.get_text() for text in figure.texts]
        seen.points += [len(line.get_xdata()) for ax in figure.axes for line in ax.lines]
        emptied(figure, *args, **options)

    monkeypatch.setattr(Figure, "clear", clear)
    return seen


@pytest.fixture
def clock(monkeypatch):
    """The seconds are set by hand; publishing takes as long as `cost` says."""

    class Clock(Page):
        now, cost = 100.0, 0.0

        def __call__(self, *shown):
            super().__call__(*shown)
            self.now += self.cost

    clock = Clock()
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


# ---------------------------------------------------------------------------------------- the picture


@pytest.mark.parametrize("ground", [WHITE, NIGHT], ids=["light", "dark"])
@pytest.mark.parametrize("steps", [1, 24, 300])
def test_every_full_ink_stands_out_from_the_page(ground, steps):
    colours, opacity = pixels(drawing_of(learnt(4, steps)).png)
    inked = colours[opacity > 0.9]
    assert len(inked) > 0.01 * opacity.size
    assert contrast(inked, ground).min() >= 3


@pytest.mark.parametrize("ground", [WHITE, NIGHT], ids=["light", "dark"])
def test_curves_and_words_are_seen_on_the_page(ground):
    colours, opacity = pixels(drawing_of(learnt(10, 240)).png)
    on_page = colours * opacity[..., None] + np.array(ground) * (1 - opacity[..., None])
    stands_out = contrast(on_page, ground) >= 3
    assert 0.01 < stands_out.mean() < 0.2
    top = stands_out[: len(stands_out) // 12]
    assert top.any(), "the headline"
    halves = np.array_split(stands_out, 2, axis=1)
    assert all(half.mean() > 0.01 for half in halves), "a chart each"


def test_the_page_shines_through():
    _, opacity = pixels(drawing_of(learnt(10, 240)).png)
    assert (opacity == 0).mean() > 0.7
    assert not opacity[[0, 0, -1, -1], [0, -1, 0, -1]].any()


def test_it_is_sharp_on_fine_screens_and_says_how_large_it_is_to_be():
    page = drawing_of(learnt(10, 240))
    _, opacity = pixels(page.png)
    assert opacity.shape == pytest.approx((2 * page.size["height"], 2 * page.size["width"]), abs=2)
    assert page.size["width"] <= 860, "the width of a notebook on GitHub"
    assert page.size["alt"] == "digits · finished"


@pytest.mark.parametrize(
    ("history", "sharp"),
    [
        (learnt(10, 240, ("Loss",)), 2),
        (learnt(10, 240), 2),
        (learnt(30, 300, tuple("abcd")), 1.2),
        (learnt(30, 300, tuple("abcdef")), 1),
        (learnt(30, 300, tuple("abcdefghijkl")), 1),
    ],
    ids=["one metric", "two", "four", "six", "twelve"],
)
def test_no_picture_is_larger_than_it_may_be(history, sharp):
    page = drawing_of(history)
    _, opacity = pixels(page.png)
    assert len(page.png) <= MOST_BYTES
    assert opacity.shape[1] >= sharp * page.size["width"] - 2


def test_a_sharpness_that_was_too_much_is_not_tried_again(figures, monkeypatch):
    monkeypatch.setattr("notebook_learner.widget.still_panel.MOST_BYTES", 1)
    history, still = learnt(30, 300, tuple("abcdef")), Still(Page())
    still.update(history, None, "", "", final=True)
    first = len(figures.headlines)
    still.update(history, None, "", "", final=True)
    assert first > 1 and len(figures.headlines) == first + 1


def test_of_many_metrics_six_are_drawn_and_the_rest_is_named(figures):
    drawing_of(learnt(2, 5, tuple("abcdefghi")), "digits")
    assert figures.titles == list("abcdef")
    assert figures.headlines == ["digits · 3 more metrics not drawn"]


def test_a_million_points_are_thinned(figures):
    history = learnt(2, 500_000, ("Loss",))
    assert len(history.values("Loss", "train")) == 1_000_000
    assert len(drawing_of(history).png) <= MOST_BYTES
    assert 1000 < max(figures.points) < 5000


@pytest.mark.parametrize("value", [NAN, float("inf"), 1e308, -1e308, 1e-310, 0.0, 7.0])
@pytest.mark.parametrize("steps", [1, 200])
def test_any_value_gives_a_picture_and_no_warning(value, steps):
    def values(epoch, steps, epochs):
        return np.where(np.arange(steps) % 7 == 3, value, 1.0)

    assert pixels(drawing_of(learnt(2, steps, values=values)).png)


def test_one_point_is_a_picture():
    colours, opacity = pixels(drawing_of(learnt(1, 1)).png)
    assert colours[opacity > 0.9].std() > 0


# ------------------------------------------------------------------------------------ names are text

NAMES = (
    "<img src=x onerror=alert(1)>",
    r"$\frac{1}{$ x $",
    "a very long name " * 9,
    "损失\x1b[31m\n",
    "_",
    "",
)


def test_names_stay_text(figures, monkeypatch):
    def parse(*args, **options):
        raise AssertionError(f"read as a formula: {args[1]}")

    monkeypatch.setattr(MathTextParser, "parse", parse)
    drawing_of(learnt(3, 30, NAMES, unit="$x$ <b>"), "run $x^2$ <script>\n" + "long " * 99)
    assert figures.titles[:2] == list(NAMES[:2])
    assert figures.titles[3:] == ["损失[31m", "_", ""]
    assert figures.titles[2].startswith("a very long name a very long") and len(figures.titles[2]) <= 34
    assert figures.headlines[0].startswith("run $x^2$ <script> long ") and len(figures.headlines[0]) <= 110


@pytest.mark.parametrize("unit", ["$", "$$", "$x$", "%", "\n", "it/s", "<b>very long indeed</b>"])
def test_units_stay_text(unit, monkeypatch):
    monkeypatch.setattr(MathTextParser, "parse", None)
    assert pixels(drawing_of(learnt(2, 5, unit=unit)).png)


def test_figures_set_in_latex_are_the_users_not_ours():
    with matplotlib.rc_context({"text.usetex": True}):
        assert pixels(drawing_of(learnt(2, 5, NAMES)).png)
        assert matplotlib.rcParams["text.usetex"]


def test_the_text_keeps_its_lines_and_loses_what_moves_a_terminals_cursor():
    page = drawing_of(History(), "a <b> $x$ \x1b[31m", "Metric   Final\r\n-----\x07\n  Loss   \x9b0.31\u202e")
    assert page.data == {"text/plain": "a <b> $x$ [31m\n\nMetric   Final\n-----\n  Loss   0.31"}


# --------------------------------------------------------------------------------- nothing to draw


def test_without_metrics_it_is_text():
    page = drawing_of(History(), "digits · ready", "no epoch has finished yet")
    assert page.shown[0][:2] == ({"text/plain": "digits · ready\n\nno epoch has finished yet"}, {})


def test_metrics_without_a_number_are_left_to_the_text():
    page = drawing_of(learnt(3, 20, values=lambda *_: np.full(20, NAN)), table="Loss NaN")
    assert page.shown[0][:2] == ({"text/plain": "digits · finished\n\nLoss NaN"}, {})


def test_the_picture_comes_with_the_first_number():
    page = Page()
    still = Still(page)
    still.update(History(), None, "", "ready")
    still.update(learnt(1, 3), None, "", "running", final=True)
    (before, _, name, known), (after, _, again, updates) = page.shown
    assert (set(before), known) == ({"text/plain"}, False)
    assert (set(after), updates) == ({"text/plain", "image/png"}, True)
    assert name == again


# -------------------------------------------------------------------------------------- how often


def test_two_drawings_are_two_seconds_apart(clock):
    still, history = Still(clock), History()
    for clock.now, shown in ((100.0, 1), (101.9, 1), (102.1, 2), (103.0, 2), (104.2, 3)):
        still.update(history, None, "", str(clock.now))
        assert len(clock.shown) == shown


def test_the_last_drawing_waits_for_nothing(clock):
    still, history = Still(clock), History()
    for _ in range(3):
        still.update(history, None, "", "paused", final=True)
    assert len(clock.shown) == 3


def test_slow_drawings_take_no_more_than_three_thousandths_of_the_time(clock):
    still, history, clock.cost = Still(clock), History(), 0.5
    for _ in range(10_000):
        clock.now += 0.1
        still.update(history, None, "", "running")
    assert 5 <= len(clock.shown) <= 7


# ------------------------------------------------------------------------------------ what it leaves


def test_clear_empties_the_output_and_the_next_update_makes_another():
    page = Page()
    still, history = Still(page), learnt(1, 3)
    still.clear()
    assert page.shown == []
    still.update(history, None, "", "one")
    still.clear()
    still.update(history, None, "", "two")
    (_, _, first, made), (emptied, metadata, same, updates), (_, _, second, again) = page.shown
    assert (made, updates, again) == (False, True, False)
    assert (emptied, metadata, same) == ({"text/plain": ""}, {}, first)
    assert second != first


def living(kind):
    # Not isinstance: it asks the object, and some of torch's answer with a warning.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]


def test_no_figure_stays_alive():
    gc.collect()
    before = len(living(Figure))
    still = Still(Page())
    for _ in range(3):
        still.update(learnt(2, 5), None, "", "", final=True)
    gc.collect()
    assert len(living(Figure)) == before


def test_the_pixels_are_given_back_before_the_garbage_is_collected():
    gc.collect()
    gc.disable()
    try:
        drawing_of(learnt(2, 5))
        assert [held for each in living(RendererAgg) for held in vars(each)] == []
    finally:
        gc.enable()


def test_training_draws_the_same_random_numbers_with_it_or_without():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    drawing_of(learnt(2, 200))
    assert states() == before


# ------------------------------------------------------------------------------- a notebook on the disk

SETUP = """
import sys
sys.path.insert(0, {here!r})
from test_still import learnt
from notebook_learner.logger import History
from notebook_learner.renderer import Summary, summary_rows
from notebook_learner.widget.still_panel import Still
"""
TRAIN = """
still, history = Still(), None
for epoch in range(1, 10):
    history = learnt(epoch, 240, history=history, first=epoch)
    table = str(Summary("Net", 52650, {}, summary_rows(history)))
    still.update(history, None, table, f"digits · epoch {epoch} of 10", final=True)
"""
AFTERWARDS = """
history = learnt(10, 240, history=history, first=10)
still.update(history, None, table, "digits · epoch 10 of 10", final=True)
print("matplotlib.pyplot" in sys.modules)
"""


@dataclass
class Executed:
    """A notebook after its kernel is gone, and the bytes its file has gained."""

    notebook: nbformat.NotebookNode
    grew: int

    @property
    def still(self):
        (output,) = self.notebook.cells[1].outputs
        return output


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    cells = [v4.new_code_cell(cell) for cell in (SETUP.format(here=str(HERE)), TRAIN, AFTERWARDS)]
    notebook = v4.new_notebook(cells=cells)
    before = len(nbformat.writes(notebook))
    folder = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=folder).execute()
    text = nbformat.writes(notebook)
    return Executed(nbformat.reads(text, as_version=4), len(text.encode()) - before)


@pytest.mark.soak
def test_ten_updates_from_two_cells_leave_one_output_where_it_began(executed):
    assert executed.still.output_type == "display_data"
    assert set(executed.still.data) == {"text/plain", "image/png"}
    assert executed.still.data["text/plain"].startswith(
        "digits · epoch 10 of 10\n\nNet · 52,650 parameters\n\nSplit  Metric"
    )
    assert pixels(base64.b64decode(executed.still.data["image/png"]))
    _, _, last = executed.notebook.cells
    assert [output.output_type for output in last.outputs] == ["stream"]


def test_it_leaves_pyplot_alone(executed):
    # Which would keep every figure, and choose what draws the user's.
    assert executed.notebook.cells[2].outputs[0].text == "False\n"


def test_a_run_of_ten_epochs_adds_less_than_200_kb(executed):
    assert 20_000 < executed.grew < 90_000


def test_the_notebook_is_valid_and_holds_no_widget(executed):
    nbformat.validate(executed.notebook)
    assert "widgets" not in executed.notebook.metadata


class Pictures(HTMLParser):
    """The images of a page."""

    def __init__(self):
        super().__init__()
        self.images = []

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images.append(dict(attributes))


def test_nbconvert_shows_the_picture_in_html(executed):
    html, _ = HTMLExporter().from_notebook_node(executed.notebook)
    page = Pictures()
    page.feed(html)
    (image,) = page.images
    assert image["src"] == "data:image/png;base64," + executed.still.data["image/png"]
    assert int(image["width"]) == executed.still.metadata["image/png"]["width"]
    output = re.search(r'<div class="jp-RenderedImage.*?</div>', html, re.DOTALL).group()
    assert "<script" not in output and "style" not in output


def test_nbconvert_puts_the_picture_in_a_pdf(executed):
    latex, resources = LatexExporter().from_notebook_node(executed.notebook)
    (name,) = resources["outputs"]
    assert resources["outputs"][name] == base64.b64decode(executed.still.data["image/png"])
    assert name in latex


def test_an_emptied_output_converts_as_well():
    cell = v4.new_code_cell(outputs=[v4.new_output("display_data", {"text/plain": ""})])
    html, _ = HTMLExporter().from_notebook_node(v4.new_notebook(cells=[cell]))
    assert "<img" not in html

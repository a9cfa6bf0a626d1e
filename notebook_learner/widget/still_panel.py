"""The still form of the panel: a saved notebook shows it without a running kernel.

Front ends show no picture for a widget whose kernel is gone, so the picture is a separate output. It is one
PNG with a transparent background, in colours that are readable on white and on near-black. Two pictures
chosen by `prefers-color-scheme` would follow the operating system and not the notebook's theme. They would
also need HTML that notebook viewers remove, or leave out of a PDF.
"""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from ..event import Evaluated, MetricInfo
from ..renderer.curves import Axis, Chart, training_axis
from ..renderer.figure import chart_of
from ..renderer.history_source import SPLITS, StepSource, metric_infos, plotted_names
from ..renderer.summary import SetTable, set_row, set_table, sets_text
from ..renderer.text import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

Show = Callable[[dict[str, Any], dict[str, Any], str, bool], None]
"""Takes data by mime type, metadata, the name of the display, and whether that display already exists."""

MOST_BYTES = 60_000
"""The most bytes of a picture; in the notebook's file it takes a third more."""
MOST_CHARTS = 6
SHORTEST_PAUSE = 2.0
"""Seconds from one drawing to the next."""
SHARE = 0.003
"""Drawing takes at most this part of the time."""

PIXELS = 88
"""Pixels of the page per inch of the figure: the smallest text is 11 pixels high."""
SHARPNESS = (2.0, 1.5, 1.25, 1.0, 0.75)
"""Pixels of the picture per pixel of the page: the first that gives a small enough file is used."""
_LEFT, _AROUND = 0.2, 0.24
"""Inches at the left and right of the table, and above and below it together."""
COLOURS = 256
"""The colours that one byte can number. A picture with all colours takes three times the bytes."""


class Still:
    """One output of a cell with the curves as a picture and the numbers as text.

    It keeps no history from one update to the next, and of all pictures the last.

    Args:
        show: publishes the output; default: IPython's `display`.
        text: the output until the first picture.
    """

    def __init__(self, show: Show | None = None, text: str = "") -> None:
        self._show = display if show is None else show
        self._name: str | None = None
        self._last: tuple[dict[str, Any], dict[str, Any]] = ({"text/plain": text}, {})
        self._sharpness = 0
        self._rests_until = -math.inf

    def update(
        self,
        history: StepSource,
        infos: Sequence[MetricInfo] | None,
        summary_text: str,
        headline: str,
        *,
        evaluated: Iterable[Evaluated] = (),
        final: bool = False,
    ) -> bool:
        """Draw what was measured so far, and replace the previous picture; return whether it did.

        Does nothing if the last drawing was a short while ago.

        Args:
            history: what was measured.
            infos: units and directions; default: what the history knows.
            summary_text: the final values as a table, for viewers that show no pictures.
            headline: a line with the run's name and its progress.
            evaluated: the evaluated sets, a table below the curves.
            final: draw always, because no update may follow for long: at a pause and at the end.
        """
        began = monotonic()
        if not final and began < self._rests_until:
            return False
        sets = tuple(evaluated)
        drawn = self._draw(history, infos, headline, sets)
        texts = [headline, summary_text, *([sets_text(sets)] if sets else [])]
        data: dict[str, Any] = {"text/plain": plain_text("\n\n".join(texts))}
        metadata: dict[str, Any] = {}
        if drawn is not None:
            data["image/png"] = drawn.png
            size = {"width": drawn.width, "height": drawn.height}
            metadata["image/png"] = {**size, "alt": one_line(headline)}
        self._publish(data, metadata)
        ended = monotonic()
        self._rests_until = ended + max(SHORTEST_PAUSE, (ended - began) / SHARE)
        return True

    def begin(self) -> None:
        """Take a place below the running cell, and show there what the earlier places show. A drawing on
        another thread does not know that cell."""
        self._publish(*self._last, again=True)

    def clear(self) -> None:
        """Empty the output. The next update makes a new output, in the cell that runs then."""
        if self._name is not None:
            # With a mime type: nbconvert warns of an output without one.
            self._publish({"text/plain": ""}, {})
        self._name, self._sharpness, self._rests_until = None, 0, -math.inf

    def _publish(self, data: dict[str, Any], metadata: dict[str, Any], again: bool = False) -> None:
        known = self._name is not None and not again
        name = self._name or f"notebook-learner-{uuid4().hex}"
        self._show(data, metadata, name, known)
        self._name, self._last = name, (data, metadata)

    def _draw(
        self,
        history: StepSource,
        infos: Sequence[MetricInfo] | None,
        headline: str,
        evaluated: Sequence[Evaluated],
    ) -> StillPicture | None:
        charts, axis = charts_of(history, infos)
        if not charts:
            return None
        sets = set_table([set_row(each) for each in evaluated]) if evaluated else None
        if len(charts) > MOST_CHARTS // 2:
            self._sharpness = max(self._sharpness, 1)  # at full sharpness they would not fit
        drawn = picture(charts, axis, headline, SHARPNESS[self._sharpness], sets)
        # Curves only gain detail: a sharpness that was once too high is not tried again.
        while len(drawn.png) > MOST_BYTES and self._sharpness + 1 < len(SHARPNESS):
            self._sharpness += 1
            drawn = picture(charts, axis, headline, SHARPNESS[self._sharpness], sets)
        return drawn


@dataclass(frozen=True, slots=True)
class StillPicture:
    """A PNG, and its size on the page in pixels."""

    png: bytes
    width: int
    height: int


def display(data: dict[str, Any], metadata: dict[str, Any], name: str, update: bool) -> None:
    """Publish an output, or replace the output of that name."""
    from IPython import display as ipython

    show: Any = ipython.display  # without types
    show(data, metadata=metadata, raw=True, display_id=name, update=update)


def plain_text(text: str) -> str:
    """The text without control characters; line breaks stay.

    >>> plain_text("a \\x1b[31mred\\r\\n  b")
    'a [31mred\\n  b'
    """
    return "\n".join("".join(filter(_visible, line)) for line in text.splitlines()).strip("\n")


def _visible(char: str) -> bool:
    return char == "\t" or not unicodedata.category(char).startswith("C")


def charts_of(history: StepSource, infos: Sequence[MetricInfo] | None) -> tuple[list[Chart], Axis]:
    """The charts of all metrics with a number, their names cut to fit, and the axis."""
    known = metric_infos(history, infos)
    trained = history.steps("train")
    axis = training_axis(trained["epoch"], trained["step"])
    names = dict.fromkeys(name for split in SPLITS for name in plotted_names(history, split, known))
    with np.errstate(all="ignore"):  # a loss of 1e308 has no finite mean: no warning
        charts = [chart_of(history, name, axis, None, known) for name in names]
    return [_labelled(chart) for chart in charts if chart.series], axis


def _labelled(chart: Chart) -> Chart:
    # The numbers of an axis carry short units, and matplotlib would read "$$" there as a formula.
    unit = shortened(one_line(chart.unit), 10).replace("$$", "$")
    return replace(chart, name=shortened(one_line(chart.name), 34), unit=unit)


def shortened(text: str, most: int) -> str:
    """The text, cut off if it is longer than `most`.

    >>> shortened("validation", 6), shortened("loss", 6)
    ('valid…', 'loss')
    """
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def picture(
    charts: Sequence[Chart], axis: Axis, headline: str, sharpness: float, sets: SetTable | None = None
) -> StillPicture:
    """Draw the first few charts under a headline, and a table below them. This takes 0.1 to 0.6 seconds."""
    import matplotlib

    more = len(charts) - MOST_CHARTS
    if more > 0:
        headline = f"{headline} · {more} more metric{'s' if more > 1 else ''} not drawn"
    # Without LaTeX, even if the user's settings ask for it: it is slow, and reads metric names as markup.
    with warnings.catch_warnings(), matplotlib.rc_context({"text.usetex": False}):
        warnings.simplefilter("ignore")  # a character that the font lacks must not cause a failure
        image = _render(charts[:MOST_CHARTS], axis, one_line(headline), sharpness, sets)
    return StillPicture(
        _png(image, sharpness), round(image.width / sharpness), round(image.height / sharpness)
    )


def _render(
    charts: Sequence[Chart], axis: Axis, headline: str, sharpness: float, sets: SetTable | None
) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from PIL import Image

    from ..renderer.drawing import Palette, panel
    from ..renderer.drawn_table import draw_table, fitted, height

    # A contrast of at least 3.8 to white and 4.1 to #111. The best possible is 4.3 to both.
    ink = "#757b84"
    palette = Palette("none", ink, ink, "#80808048", train="#0a7bc0", valid="#d55e00")
    columns = min(len(charts), 2)
    rows = math.ceil(len(charts) / columns)
    wide = (6.4, 9.6)[columns - 1]
    table = None if sets is None else fitted(sets, wide - 2 * _LEFT)
    below = 0.0 if table is None else height(table) + _AROUND
    high = 0.35 + 2.85 * rows + below
    figure = Figure(
        figsize=(wide, high),
        dpi=PIXELS * sharpness,
        layout=ConstrainedLayoutEngine(
            w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.06, rect=(0, below / high, 1, 1 - below / high)
        ),
        facecolor="none",
    )
    canvas: Any = FigureCanvasAgg(figure)  # without types
    title = shortened(headline, (72, 110)[columns - 1])
    figure.suptitle(title, x=0.012, ha="left", size=10, color=ink, parse_math=False)
    for index, chart in enumerate(charts):
        panel(figure.add_subplot(rows, columns, index + 1), chart, axis, palette, labels=7 - columns)
    if table is not None:
        place = (_LEFT / wide, _AROUND / 2 / high, 1 - 2 * _LEFT / wide, height(table) / high)
        draw_table(figure.add_axes(place), table, palette)
    canvas.draw()
    image = Image.fromarray(np.array(canvas.buffer_rgba()))
    figure.clear()
    # A figure, its texts and its canvas refer to each other, so only the garbage collector frees them: in a
    # training loop after many drawings. This frees the four megabytes of pixels now.
    vars(canvas.renderer).clear()
    return image


def _png(image: Image, sharpness: float) -> bytes:
    from PIL.Image import Dither, Quantize

    few = image.quantize(COLOURS, method=Quantize.FASTOCTREE, dither=Dither.NONE)
    file = io.BytesIO()
    few.save(file, "png", compress_level=9, dpi=(PIXELS * sharpness, PIXELS * sharpness))
    return file.getvalue()

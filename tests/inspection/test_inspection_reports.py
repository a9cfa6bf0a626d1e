"""The report as text, as HTML and in short: what it says, and that no stranger's text becomes markup."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
import torch
from looked_at import ConvNet, classification, images
from torch import nn
from torch.nn import functional

from notebook_learner import ClassificationOutput
from notebook_learner.inspection import look

HOSTILE = "<img src=x onerror=alert(1)>&\"'\x1b[31m\n"


@pytest.fixture(scope="module")
def inspection():
    torch.manual_seed(0)
    model, batch = ConvNet(), images()
    model.norm.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    run = classification(model, batch)
    run()
    optimizer.step()
    optimizer.zero_grad()
    times = {"data": 0.001, "forward": 0.002, "backward": 0.0065, "optimizer": 0.0005}
    place = "epoch 1, train, step 3 of 5"
    return look(batch, run, model, optimizer, apply=optimizer.step, times=times, place=place)


def line(text, start):
    """The one line that begins so, its runs of spaces made one."""
    (found,) = [one for one in map(" ".join, map(str.split, text.splitlines())) if one.startswith(start)]
    return found


def test_the_text_says_what_matters(inspection):
    text = repr(inspection)
    lines = text.splitlines()
    assert lines[0] == "Inspection of ConvNet · epoch 1, train, step 3 of 5"
    assert re.fullmatch(r"loss \d\.\d{3}", lines[1])
    titles = [one for one in lines[3:] if one and not one.startswith(" ")]
    assert titles == ["Batch", "Worst samples", "Layers", "Optimizer", "Optimizer state", "Memory", "Time"]
    assert line(text, "[0]").startswith("[0] 6 x 1 x 8 x 8 float32 cpu -")
    assert "[1] classes: 0 (1), 1 (1), 2 (1), 3 (1), 4 (1), 5 (1)" in text
    assert re.match(r"conv1 Conv2d 40 6 x 4 x 8 x 8 -?\d", line(text, "conv1"))
    assert line(text, "norm").startswith("norm BatchNorm2d frozen 8 6 x 4 x 8 x 8")
    assert line(text, "relu").startswith("relu ReLU 2 calls 6 x 6 x 8 x 8")
    assert line(text, "unused").startswith("unused Linear no gradient 12 not seen")
    assert line(text, "0 0.001").startswith("0 0.001 10 ")
    assert line(text, "backward") == "backward 6.50 ms 65 %"
    assert line(text, "parameters").startswith("parameters 5.01 kB")


def test_columns_of_the_text_are_aligned(inspection):
    lines = repr(inspection).splitlines()
    start = lines.index("Layers")
    heading, rule = lines[start + 1], lines[start + 2]
    assert [match.start() for match in re.finditer(r"-+", rule)][:2] == [2, heading.index("kind")]
    assert all(one == one.rstrip() for one in lines)
    assert max(map(len, lines)) < 170


def test_a_culprit_and_a_failure_come_first():
    model, (x, y) = ConvNet(), images()
    x[0, 0, 0, 0] = math.nan
    model.fc = nn.Linear(3, 3)
    text = repr(look((x, y), classification(model, (x, y)), model)).splitlines()
    assert text[1].startswith("failed: RuntimeError: mat1 and mat2")
    assert text[2].startswith("not finite: input: 1 of 384 values of the batch[0] are not finite")


def test_why_there_are_no_samples_is_said():
    model, x = nn.Linear(3, 1), torch.ones(2, 3)

    def run():
        loss = model(x).sum()
        loss.backward()
        return loss

    assert "  the step's output is a Tensor without tensors `.output` and `.targets`" in repr(
        look(x, run, model)
    )


def test_of_very_many_layers_those_with_a_flag_are_shown():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(300)))
    model.append(nn.Linear(5, 5))
    for layer in model[:300]:
        nn.init.eye_(layer.weight)
    x = torch.ones(2, 2)

    def run():
        loss = model[:300](x).sum()
        loss.backward()
        return loss

    inspection = look(x, run, model)
    text = repr(inspection)
    assert "and 261 more layers: see inspection.layers" in text
    assert line(text, "300 ").startswith("300 Linear no gradient")
    assert inspection._repr_html_().count("<tr>") < 260
    layers = next(section for section in inspection.sections() if section["title"] == "Layers")
    assert layers["rows"][0][0] == "300"
    assert layers["rows"][-1] == ["…", "and 290 more"]
    assert layers["grid"]["cells"][0][0] == "300"
    assert (len(layers["grid"]["cells"]), layers["grid"]["more"]) == (12, "and 289 more")


class Page(HTMLParser):
    """The tags and attributes that a browser would make."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = set(), set(), [], []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag not in ("img", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(inspection):
    seen = Page()
    seen.feed(inspection._repr_html_())
    assert seen.open == []
    return seen


TAGS = {"div", "style", "h3", "h4", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
TAGS |= {"svg", "title", "path", "img"}
ATTRIBUTES = {"class", "tabindex", "role", "aria-label", "width", "height", "viewbox", "d", "fill"}
ATTRIBUTES |= {"src", "alt", "title"}


def test_the_html_holds_tables_pictures_and_histograms(inspection):
    seen = page(inspection)
    assert seen.tags == TAGS
    assert seen.attributes <= ATTRIBUTES
    words = " ".join(seen.text)
    for word in (
        "Inspection of ConvNet",
        "epoch 1, train, step 3 of 5",
        "conv2",
        "no gradient",
        "exp_avg_sq",
    ):
        assert word in words
    assert "http" not in inspection._repr_html_()


def test_a_histogram_has_a_bar_for_every_bin_with_values(inspection):
    counts = inspection["conv1"].activations.counts
    bars = re.findall(r'<path d="([^"]+)"', inspection._repr_html_())[0]
    assert bars.count("M") == sum(count > 0 for count in counts)
    assert "v-18h" in bars  # the highest is as high as the picture


@pytest.mark.parametrize("broken", [False, True])
def test_strangers_text_is_no_markup_and_moves_no_cursor(broken):
    hostile = type(HOSTILE.replace("\n", ""), (nn.Linear,), {})
    model = nn.ModuleDict({HOSTILE.replace(".", ""): hostile(3, 3)})
    (layer,) = model.values()
    batch = {HOSTILE: torch.ones(2, 3), "y": torch.tensor([[1, 2]])}
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), HOSTILE: HOSTILE}], lr=0.1)

    def run():
        output = layer(batch[HOSTILE])
        loss = functional.cross_entropy(output, torch.tensor([0, 1]))
        loss.backward()
        if broken:
            raise RuntimeError(HOSTILE)
        return ClassificationOutput(loss, output, torch.tensor([0, 1]))

    options = {"place": HOSTILE, "times": {HOSTILE: 1.0}, "tokenizer": lambda tokens: HOSTILE}
    inspection = look(batch, run, model, optimizer, **options)
    seen = page(inspection)
    assert seen.tags <= TAGS and seen.attributes <= ATTRIBUTES
    assert "onerror=alert(1)" in " ".join(seen.text)
    cells = [cell for section in inspection.sections() for row in section["rows"] for cell in row]
    assert "\x1b" not in "".join([repr(inspection), inspection._repr_html_(), *cells])


def test_sections_are_short_pairs_of_text(inspection):
    sections = inspection.sections()
    titles = [section["title"] for section in sections]
    assert titles == ["Step", "Batch", "Worst samples", "Layers", "Optimizer", "Memory", "Time"]
    for section in sections:
        assert 0 < len(section["rows"]) <= 12
        assert all(len(row) == 2 and all(isinstance(cell, str) for cell in row) for row in section["rows"])
    grids = {section["title"]: section["grid"] for section in sections if section["grid"]}
    assert list(grids) == ["Worst samples", "Layers"]
    for grid in grids.values():
        assert {len(cells) for cells in grid["cells"]} == {len(grid["heads"])} == {len(grid["right"])}
        assert len(grid["wrong"]) == len(grid["cells"])
    assert grids["Layers"]["heads"][:2] == ["layer", "kind"]
    assert grids["Layers"]["cells"][0][0] == "unused" and grids["Layers"]["wrong"][0]
    assert not grids["Layers"]["wrong"][-1]
    rows = {section["title"]: dict(section["rows"]) for section in sections}
    assert next(iter(rows["Layers"])) == "unused"  # flagged first
    assert rows["Batch"]["[1]"] == "int64 [6]  0 … 5"
    assert rows["Time"]["forward"] == "2.00 ms  20 %"
    assert rows["Optimizer"]["group 0"].endswith("1 steps")

"""The tables of a report, for both its text and its HTML form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..renderer.text import count, duration, number, one_line, size_text
from .batch import BatchTensor
from .findings import Findings
from .layers import Layer
from .optimizer import Group, Option
from .samples import Example
from .statistics import Histogram

Cell = str | Histogram | None


class Alarm(str):
    """A cell's text that should catch the eye."""

    __slots__ = ()


_LONGEST_NAME, _LONGEST_EXAMPLE = 60, 120
_MOST_CLASSES = 12
_OF_VALUES = ("mean", "std", "min", "max", "zeros")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading, and whether its column holds numbers."""

    heading: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A part of the report: a table, and lines below it."""

    title: str
    columns: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    lines: Sequence[str] = field(default=())


def tables(inspection: Findings, *, most_layers: int, most_samples: int) -> list[ReportTable]:
    """All tables that are not empty."""
    found = [
        batch_table(inspection),
        samples_table(inspection, most_samples),
        layers_table(inspection, most_layers),
        optimizer_table(inspection),
        state_table(inspection),
        memory_table(inspection),
        times_table(inspection),
    ]
    return [table for table in found if table.rows or table.lines]


def headline(inspection: Findings) -> str:
    """The first line: the model, and the position of the training."""
    return " · ".join(
        part for part in (f"Inspection of {name(inspection.model)}", one_line(inspection.place)) if part
    )


def remarks(inspection: Findings) -> list[tuple[str, str]]:
    """The remarks before the tables, each with its kind: a failure, the first value not finite, notes."""
    found = []
    if inspection.failed is not None:
        found.append(("failed", one_line(inspection.failed)))
    if inspection.first_non_finite is not None:
        found.append(("not finite", one_line(str(inspection.first_non_finite))))
    return found + [("note", one_line(note)) for note in inspection.notes]


def name(text: str) -> str:
    """A name as one harmless line. A long name loses its beginning, because the end is more specific."""
    line = one_line(text)
    return line if len(line) <= _LONGEST_NAME else f"…{line[1 - _LONGEST_NAME :]}"


def shape(sizes: Sequence[int] | None) -> str:
    """Format a shape.

    >>> shape((32, 3)), shape(()), shape(None)
    ('32 x 3', 'scalar', '')
    """
    if sizes is None:
        return ""
    return " x ".join("?" if size < 0 else str(size) for size in sizes) or "scalar"


def maybe(value: float | None) -> str:
    """Format a number; "" for None and for the statistic of no values.

    >>> maybe(0.5), maybe(None)
    ('0.5000', '')
    """
    return "" if value is None else number(value)


def share(part: float) -> str:
    """Format a share, exact at both ends: "0 %" and "100 %" are never rounded values.

    >>> share(0), share(0.004), share(0.5), share(0.999), share(1)
    ('0 %', '< 1 %', '50 %', '> 99 %', '100 %')
    """
    if math.isnan(part):
        return ""
    if 0 < part < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < part < 1 else f"{100 * part:.0f} %"


def span(seconds: float) -> str:
    """Format a time, also one far below a second: steps may take a fraction of a millisecond.

    >>> span(0.00051), span(0.0123), span(2.5)
    ('0.51 ms', '12 ms', '2.5 s')
    """
    return f"{1000 * seconds:.2f} ms" if 0 <= seconds < 0.00995 else duration(seconds)


def some(value: int) -> str:
    """Format a count; "" for zero."""
    return count(value) if value else ""


# ------------------------------------------------------------------------------------------ tables


def batch_table(inspection: Findings) -> ReportTable:
    """Every tensor of the batch, with classes and texts below."""
    numbers = ("min", "max", "mean", "std", "NaN", "inf")
    columns = [Heading("tensor"), Heading("shape"), Heading("type"), Heading("device")]
    columns += [Heading(heading, right=True) for heading in numbers]
    lines = [line for row in inspection.batch for line in _about(row)]
    return ReportTable("Batch", columns, [_batch_row(row) for row in inspection.batch], lines)


def _batch_row(row: BatchTensor) -> list[Cell]:
    head: list[Cell] = [name(row.path) or "batch", shape(row.shape), row.dtype, row.device]
    values = row.statistics
    if values is None or not values.count:
        return [*head, *[""] * 6]
    numbers = [bound(row, values.min), bound(row, values.max), number(values.mean), number(values.std)]
    return [*head, *numbers, Alarm(some(values.nan)), Alarm(some(values.inf))]


def bound(row: BatchTensor, value: float) -> str:
    """Format the least or greatest value of a tensor: as a whole number if the tensor holds integers."""
    whole = "int" in row.dtype or row.dtype == "bool"
    return count(int(value)) if whole and math.isfinite(value) else number(value)


def _about(row: BatchTensor) -> list[str]:
    path = name(row.path) or "batch"
    lines = [f"{path} classes: {classes(row)}"] if row.classes else []
    return lines + [f"{path} row {at}: {text}" for at, text in enumerate(row.texts)]


def classes(row: BatchTensor) -> str:
    """The values of an integer tensor and their counts; if there are many, the most frequent ones."""
    counted = list((row.classes or {}).items())
    shown = counted
    if len(counted) > _MOST_CLASSES:
        shown = sorted(counted, key=lambda pair: -pair[1])[:_MOST_CLASSES]
    text = ", ".join(f"{value} ({count(times)})" for value, times in shown)
    return text if len(shown) == len(counted) else f"{text} and {count(len(counted) - len(shown))} more"


def samples_table(inspection: Findings, most: int) -> ReportTable:
    """The worst samples, or the reason why they are unknown."""
    columns = [
        Heading("sample", True),
        Heading("loss", True),
        Heading("target"),
        Heading("prediction"),
    ]
    if inspection.samples is None:
        reason = [] if inspection.failed is not None else [inspection.samples_reason]
        return ReportTable("Worst samples", columns, [], [one_line(line) for line in reason if line])
    shown = inspection.samples[:most]
    rows = [[str(one.index), number(one.loss), example(one.target), example(one.prediction)] for one in shown]
    more = len(inspection.samples) - len(shown)
    return ReportTable(
        "Worst samples", columns, rows, [f"and {count(more)} with a smaller loss"] if more else []
    )


def example(value: Example) -> str:
    """Format a target or a prediction."""
    if value is None:
        return ""
    if isinstance(value, list):
        text = f"[{', '.join(example(one) for one in value)}]"
    elif isinstance(value, float):
        text = number(value)
    else:
        text = one_line(str(value))
    return text if len(text) <= _LONGEST_EXAMPLE else f"{text[: _LONGEST_EXAMPLE - 1]}…"


def layers_table(inspection: Findings, most: int) -> ReportTable:
    """The layers in their order; if there are too many, the first ones and all that are flagged."""
    columns = [
        Heading("layer"),
        Heading("kind"),
        Heading("remarks"),
        Heading("parameters", True),
    ]
    columns += [
        Heading("output"),
        *(Heading(heading, True) for heading in _OF_VALUES),
        Heading("values"),
    ]
    columns += [Heading("gradient", True), Heading("gradients"), Heading("update/weight", True)]
    chosen = chosen_layers(inspection.layers, most)
    more = len(inspection.layers) - len(chosen)
    lines = [f"and {count(more)} more layers: see inspection.layers"] if more else []
    return ReportTable("Layers", columns, [_layer_row(layer) for layer in chosen], lines)


def chosen_layers(layers: Sequence[Layer], most: int) -> list[Layer]:
    """Choose at most `most` layers and keep their order: flagged layers are chosen first."""
    if len(layers) <= most:
        return list(layers)
    by_weight = sorted(range(len(layers)), key=lambda at: (not is_alarming(layers[at]), at))
    return [layers[at] for at in sorted(by_weight[:most])]


def is_alarming(layer: Layer) -> bool:
    """Whether a layer has a flag that the user did not cause."""
    return any(flag != "frozen" for flag in layer.flags)


def _layer_row(layer: Layer) -> list[Cell]:
    values = layer.activation
    seen = shape(layer.shape) if layer.calls else "not seen"
    if values is None or not values.count:
        numbers: list[Cell] = [""] * 5
    else:
        numbers = [maybe(one) for one in (values.mean, values.std, values.min, values.max)]
        numbers.append(share(values.zeros))
    said = remark(layer)
    return [
        *(name(layer.name) or "(itself)", name(layer.kind), Alarm(said) if is_alarming(layer) else said),
        *(some(layer.parameters), seen, *numbers, layer.activations),
        *(maybe(layer.gradient_norm), layer.gradients, maybe(layer.update_ratio)),
    ]


def remark(layer: Layer) -> str:
    """A layer's flags with their numbers of values, and its number of calls if there are several."""
    parts = [_counted(layer, flag) for flag in layer.flags]
    return ", ".join([*parts, *([f"{layer.calls} calls"] if layer.calls > 1 else [])])


def _counted(layer: Layer, flag: str) -> str:
    wrong = {"NaN": "nan", "inf": "inf"}.get(flag)
    if wrong is None:
        return flag
    where = {"output": layer.activation, "gradient": layer.gradient}
    held = [f"{count(many)} in {place}" for place, one in where.items() if (many := getattr(one, wrong, 0))]
    return f"{flag} ({', '.join(held)})"


def optimizer_table(inspection: Findings) -> ReportTable:
    """The groups of the optimizer."""
    columns = [
        Heading("group", True),
        Heading("lr", True),
        Heading("tensors", True),
        Heading("parameters", True),
    ]
    columns += [Heading("steps", True), Heading("settings")]
    return ReportTable("Optimizer", columns, [_group_row(group) for group in inspection.optimizer])


def _group_row(group: Group) -> list[Cell]:
    rate = group.options.get("lr")
    steps = "" if group.steps is None else count(group.steps)
    return [
        *(group.label, option(rate), count(group.tensors), count(group.elements), steps),
        ", ".join(
            f"{name(key)} {option(value)}" for key, value in group.options.items() if _is_shown(key, value)
        ),
    ]


def _is_shown(key: str, value: Option) -> bool:
    # A switch that is off is not shown; `initial_lr` is a scheduler's own value.
    return key not in ("lr", "params", "initial_lr") and value is not None and value is not False


def option(value: Option) -> str:
    """Format a setting as in code: 0.001 and not 1.000e-3.

    >>> option(0.001), option((0.9, 0.999)), option(None)
    ('0.001', '(0.9, 0.999)', '')
    """
    if value is None:
        return ""
    if isinstance(value, tuple):
        return f"({', '.join(option(one) for one in value)})"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = one_line(str(value))
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def state_table(inspection: Findings) -> ReportTable:
    """The optimizer's state, key by key."""
    columns = [
        Heading("group", True),
        Heading("state"),
        Heading("mean |x|", True),
        Heading("max |x|", True),
    ]
    rows = [
        [group.label, name(one.key), number(one.mean), number(one.max)]
        for group in inspection.optimizer
        for one in group.state
    ]
    return ReportTable("Optimizer state", columns, rows)


def memory_table(inspection: Findings) -> ReportTable:
    """Bytes by kind, and the numbers of a GPU's allocator."""
    memory = inspection.memory
    kinds = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer state": memory.optimizer,
        "buffers": memory.buffers,
        "saved activations": memory.activations,
        "batch": memory.batch,
    }
    rows = [[kind, size_text(size), share(size / memory.total)] for kind, size in kinds.items() if size]
    device = {"allocated": memory.allocated, "reserved": memory.reserved, "peak": memory.peak}
    rows += [[f"CUDA, {kind}", size_text(size), ""] for kind, size in device.items() if size is not None]
    return ReportTable("Memory", [Heading("kind"), Heading("size", True), Heading("share", True)], rows)


def times_table(inspection: Findings) -> ReportTable:
    """The seconds of each part of a step."""
    times = inspection.times or {}
    whole = sum(times.values()) or 1.0
    rows = [[name(part), span(seconds), share(seconds / whole)] for part, seconds in times.items()]
    return ReportTable("Time", [Heading("part"), Heading("time", True), Heading("share", True)], rows)

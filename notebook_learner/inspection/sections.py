"""The short report for a narrow panel, as pairs of name and text."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from ..renderer.numbers import count, number
from .findings import Findings
from .layers import Layer
from .report_tables import (
    Alarm,
    ReportTable,
    bound,
    classes,
    example,
    is_alarming,
    layers_table,
    maybe,
    memory_table,
    name,
    option,
    remark,
    remarks,
    samples_table,
    share,
    times_table,
)

MOST_ROWS = 12
_MOST_SAMPLES = MOST_ROWS - 4
_TOO_MUCH = ("parameters", "min", "max")
"""Columns of the report that a panel leaves out, for lack of room."""

Row = list[str]


class Grid(TypedDict):
    """The data of `rows` in columns."""

    heads: list[str]
    right: list[bool]
    """Which columns hold numbers."""
    cells: list[list[str]]
    wrong: list[bool]
    """Which rows are highlighted."""
    more: str
    """A text about what is left out, if anything."""


class Section(TypedDict):
    """A title and its rows, each a name and a text; also a table if there is more to compare."""

    title: str
    rows: list[Row]
    grid: Grid | None


def sections(inspection: Findings) -> list[Section]:
    """The parts of the report that are not empty, each with at most a dozen rows."""
    found = {
        "Step": _step(inspection),
        "Batch": _batch(inspection),
        "Worst samples": _samples(inspection),
        "Layers": _layers(inspection),
        "Optimizer": _optimizer(inspection),
        "Memory": [
            [str(kind), f"{size}  {part}".rstrip()] for kind, size, part in memory_table(inspection).rows
        ],
        "Time": [[str(part), f"{time}  {of}"] for part, time, of in times_table(inspection).rows],
    }
    grids = _grids(inspection)
    return [
        {"title": title, "rows": _cut(rows), "grid": grids.get(title)}
        for title, rows in found.items()
        if rows
    ]


def _grids(inspection: Findings) -> dict[str, Grid]:
    few = replace(inspection, layers=tuple(_flagged_first(inspection)[:MOST_ROWS]))
    tables = [samples_table(inspection, _MOST_SAMPLES), layers_table(few, MOST_ROWS)]
    whole = {"Worst samples": len(inspection.samples or ()), "Layers": len(inspection.layers)}
    return {table.title: _grid(table, whole[table.title] - len(table.rows)) for table in tables if table.rows}


def _grid(table: ReportTable, lost: int) -> Grid:
    rows = [[one if isinstance(one, str) else "" for one in row] for row in table.rows]
    kept = [
        at
        for at, column in enumerate(table.columns)
        if column.heading not in _TOO_MUCH and any(row[at] for row in rows)
    ]
    return {
        "heads": [table.columns[at].heading for at in kept],
        "right": [table.columns[at].right for at in kept],
        "cells": [[str(row[at]) for at in kept] for row in rows],
        "more": f"and {count(lost)} more" if lost else "",
        "wrong": [any(isinstance(one, Alarm) and one for one in row) for row in rows],
    }


def _cut(rows: list[Row]) -> list[Row]:
    if len(rows) <= MOST_ROWS:
        return rows
    return [*rows[: MOST_ROWS - 1], ["…", f"and {count(len(rows) - MOST_ROWS + 1)} more"]]


def _step(inspection: Findings) -> list[Row]:
    loss = [] if inspection.loss is None else [["loss", number(inspection.loss)]]
    return loss + [[kind, text] for kind, text in remarks(inspection)]


def _batch(inspection: Findings) -> list[Row]:
    rows = []
    for one in inspection.batch:
        values, path = one.statistics, name(one.path) or "batch"
        text = f"{one.dtype} {list(one.shape)}"
        if values is not None and values.count > values.nan + values.inf:
            text += f"  {bound(one, values.min)} … {bound(one, values.max)}"
        wrong = {"NaN": values.nan, "inf": values.inf} if values is not None else {}
        text += "".join(f", {count(many)} {kind}" for kind, many in wrong.items() if many)
        rows.append([path, text])
        rows += [[f"{path} classes", classes(one)]] if one.classes else []
        rows += [[f"{path} text", one.texts[0]]] if one.texts else []
    return rows


def _samples(inspection: Findings) -> list[Row]:
    rows = []
    for one in (inspection.samples or ())[:_MOST_SAMPLES]:
        text = f"loss {number(one.loss)}"
        said = {"target": example(one.target), "prediction": example(one.prediction)}
        rows.append(
            [
                f"sample {one.index}",
                text + "".join(f", {what} {value}" for what, value in said.items() if value),
            ]
        )
    return rows


def _layers(inspection: Findings) -> list[Row]:
    return [[name(layer.name) or name(layer.kind), _layer(layer)] for layer in _flagged_first(inspection)]


def _flagged_first(inspection: Findings) -> list[Layer]:
    """The layers with the flagged ones first: a panel shows a dozen of perhaps hundreds."""
    return sorted(inspection.layers, key=lambda layer: not is_alarming(layer))


def _layer(layer: Layer) -> str:
    values = layer.activation
    parts = [remark(layer)]
    if values is not None and values.count > values.nan + values.inf:
        parts.append(f"mean {number(values.mean)}, std {number(values.std)}, {share(values.zeros)} zero")
    if layer.gradient_norm is not None:
        parts.append(f"gradient {maybe(layer.gradient_norm)}")
    if layer.update_ratio is not None:
        parts.append(f"update/weight {maybe(layer.update_ratio)}")
    return ", ".join(part for part in parts if part) or "not seen"


def _optimizer(inspection: Findings) -> list[Row]:
    rows = []
    for group in inspection.optimizer:
        steps = "" if group.steps is None else f", {count(group.steps)} steps"
        rows.append(
            [
                f"group {group.index}",
                f"lr {option(group.options.get('lr'))}, {count(group.elements)} parameters{steps}",
            ]
        )
        rows += [[one.key, f"mean {number(one.mean)}, max {number(one.max)}"] for one in group.state]
    return rows

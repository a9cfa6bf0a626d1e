"""`artifacts.h5`: a run as one HDF5 file, only for viewers (h5web, HDFView, h5py).

It is made from the metric logs, the names of the checkpoints and the run's description of itself. Only its
header is read again, and nothing is lost if the file is deleted. It follows NeXus (NX_class), so h5web plots
it at a click:

    /                       schema, written_by, default: the path of the loss
    /run                    attributes: model, parameters, device, started, ...
    /run/settings           attributes: the settings of the run; /run/versions: of torch, numpy, ...
    /run/recipe             JSON: hyper-parameters, data, source text, versions, and what was changed by hand
    /series/train/Loss      value, weight, epoch, step, iteration, time: a row a step. A reading has no
                            weight; NaN where a step has no value, or its time is not known
    /series/train/GPU       of a text metric: text, epoch, step, iteration, time; a row a change
    /epochs/valid/Loss      value, epoch: a row an epoch that has ended
    /series/test/clean/Loss, /epochs/test/clean/Loss    the same of the evaluated set "clean"; epoch and
                            iteration are those of the weights
    /branches/1             attributes: where the run left this branch, and why; series and epochs as
                            above, from the epoch on in which it begins
    /checkpoints/3-117      attributes; links "model", "optim", ... to the checkpoint's own files
    /timeline               kind, epoch, split, step, time, text: pauses, rewinds, checkpoints, ...

Times are seconds since 1970. epoch, step, iteration and time exist once for a split and are linked into
each metric. In names "/" is "%2F". With plain h5py:

    >>> import h5py, io
    >>> file = h5py.File(io.BytesIO(_example()), "r")
    >>> loss = file["series/train/Loss"]
    >>> loss["value"][:], loss["epoch"][:], loss["step"][:]
    (array([0.75, 0.25]), array([1, 1]), array([1, 2]))
    >>> file["epochs/train/Loss/value"][-1], file["run"].attrs["model"]
    (np.float64(0.5), 'Net')

The first bytes, the user block of the HDF5 file, hold what a resumed run needs (the times of its steps, its
timeline) as JSON with a checksum. `read_header` reads them without any HDF5 library.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.info import CheckpointInfo
from ..errors import DamagedError
from ..event.record import text_runs
from ..event.values import (
    Column,
    Evaluated,
    Floats,
    MetricBlock,
    MetricInfo,
    Record,
    RunOpened,
    Split,
    SplitRecord,
)
from ..logger.branches import Branch
from ..store import durable
from ..store.durable import digest_of
from ..store.json_text import parse, to_text
from ..store.layout import SPLITS, TEST
from .clock import Clock
from .hdf5 import IndexGroup, file_bytes
from .run_info import RunInfo
from .timeline import TimelineMark

SCHEMA = 1
MAGIC = b"NBLINDEX"
_FIXED = struct.Struct("<8sIQ32s")
_LARGEST_TEXTS = 1 << 24
"""Bytes that the texts of one metric may take. Each takes the space of the longest, which may be cut."""
_MOST_TEXTS = 1 << 18
"""The most texts of one metric that are written; the logs have all of them."""
_ROWS = 1 << 16
"""Rows of a column that are made at a time."""


def encode_index(
    run: RunInfo,
    record: Record,
    clock: Clock,
    timeline: Sequence[TimelineMark],
    checkpoints: Sequence[CheckpointInfo],
    written_at: float | None = None,
    evaluated: Sequence[Evaluated] = (),
    recipe: str = "",
    branches: Sequence[tuple[Branch, Record]] = (),
) -> bytes:
    """Make the whole file in memory: in a training process HDF5 never writes to the disk."""
    header = _header(run, clock, timeline, time.time() if written_at is None else written_at, recipe)

    def fill(root: IndexGroup) -> None:
        root.attributes(
            {
                "NX_class": "NXroot",
                "schema": SCHEMA,
                "written_by": f"notebook_learner {run.versions.get('notebook_learner', '')}".strip(),
                "default": _default(record),
            }
        )
        _write_run(root.group("run"), run, recipe)
        series, epochs = root.group("series", "NXentry"), root.group("epochs", "NXentry")
        _write_series(series, run, record, clock)
        _write_epochs(epochs, run, record)
        if evaluated:
            _write_evaluated(series.group(TEST), epochs.group(TEST), evaluated)
        if branches:
            _write_branches(root.group("branches"), run, branches)
        _write_checkpoints(root.group("checkpoints"), checkpoints)
        _write_timeline(root.group("timeline"), timeline)

    return file_bytes(header, fill)


# The header ------------------------------------------------------------------------------------------


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `artifacts.h5` says of its run, from its first bytes, without an HDF5 library.

    The values under "run", "clock" and "timeline" are for `RunInfo.from_json`, `Clock.from_json` and
    `Mark.from_json`, which check them.

    Raises:
        OSError: there is no such file, or it is a link, a pipe, a folder.
        DamagedError: it is damaged, or not an `artifacts.h5`.
    """
    place = Path(path)
    text, digest, beside = _read_text(place)
    if digest_of(text).encode() != digest:
        raise DamagedError(f"{place}: the header does not fit its checksum; delete the file, it is rebuilt")
    try:
        header = parse(text, beside)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise DamagedError(f"{place}: the header is no JSON object; delete the file, it is rebuilt")
    if not isinstance(header.get("run"), dict):
        raise DamagedError(f"{place}: the header tells of no run; delete the file, it is rebuilt")
    return header


def _read_text(place: Path) -> tuple[bytearray, bytes, int]:
    """The header's JSON, the checksum that it should have, and the number of all other bytes."""
    with durable.opened(place) as file:
        if file.size < _FIXED.size:
            raise DamagedError(f"{place}: {file.size} bytes are too few for an artifacts.h5; delete the file")
        magic, schema, length, digest = _FIXED.unpack(file.read(0, _FIXED.size))
        if magic != MAGIC or not schema:
            raise DamagedError(f"{place} does not begin as an artifacts.h5 does; delete the file, or move it")
        if schema > SCHEMA:
            raise DamagedError(
                f"{place} has schema {schema}, and this version reads up to {SCHEMA}; update notebook_learner"
            )
        return file.read(_FIXED.size, length), digest, file.size - length


def _header(
    run: RunInfo, clock: Clock, timeline: Sequence[TimelineMark], written_at: float, recipe: str
) -> bytes:
    told = {
        "schema": SCHEMA,
        "run": run.to_json(),
        "clock": clock.to_json(),
        "timeline": [mark.to_json() for mark in timeline],
        "written_at": written_at,
        "recipe": recipe,
    }
    text = to_text(told).encode()
    return _FIXED.pack(MAGIC, SCHEMA, len(text), digest_of(text).encode()) + text


# Run, checkpoints, timeline --------------------------------------------------------------------------


def _write_run(group: IndexGroup, run: RunInfo, recipe: str) -> None:
    told = run.to_json()
    nested = {name: told.pop(name) for name in ("settings", "versions")}
    told["metrics"] = json.dumps(told["metrics"])
    group.attributes(told)
    for name, values in nested.items():
        group.group(name).attributes(values)
    if recipe:
        group.texts("recipe", [recipe])


def _write_checkpoints(group: IndexGroup, checkpoints: Sequence[CheckpointInfo]) -> None:
    for info in checkpoints:
        each = group.group(info.label)
        each.attributes(
            {
                "epoch": info.epoch,
                "split": info.split,
                "step": info.step,
                "iteration": info.iteration,
                "kind": info.kind,
                "saved_at": info.saved_at,
                "size": info.size,
                "metrics": json.dumps({split: dict(values) for split, values in info.metrics.items()}),
            }
        )
        for part, name in info.files.items():
            if name.endswith(".h5") and os.path.basename(name) == name and not name.startswith("."):
                each.external_link(part, f"checkpoint/{name}")
            else:
                each.attributes({part: name})


def _write_branches(group: IndexGroup, run: RunInfo, branches: Sequence[tuple[Branch, Record]]) -> None:
    for branch, record in branches:
        each, begin, end = group.group(branch.name), branch.begin, branch.end
        each.attributes(
            {
                "parent": branch.parent,
                "epoch": begin.epoch,
                "split": begin.split,
                "step": begin.step,
                "iteration": begin.iteration,
                "end_epoch": end.epoch,
                "end_split": end.split,
                "end_step": end.step,
                "end_iteration": end.iteration,
                "left_at": branch.when,
                "why": branch.why,
                "changes": "; ".join(branch.changes),
            }
        )
        _write_series(each.group("series", "NXentry"), run, record, Clock())
        _write_epochs(each.group("epochs", "NXentry"), run, record)


def _write_timeline(group: IndexGroup, timeline: Sequence[TimelineMark]) -> None:
    group.texts("kind", [mark.kind for mark in timeline])
    group.dataset("epoch", np.array([mark.epoch for mark in timeline], np.int64))
    group.texts("split", [mark.split for mark in timeline])
    group.dataset("step", np.array([mark.step for mark in timeline], np.int64))
    group.dataset("time", np.array([mark.when for mark in timeline], np.float64))
    group.texts("text", [mark.text for mark in timeline], _LARGEST_TEXTS)


def _default(record: Record) -> str:
    """The curve that a viewer shows first: the loss, if possible of validation and by epoch."""
    for split in reversed(SPLITS):
        if any(past.split == split and "Loss" in (past.finals or ()) for past in record):
            return f"/epochs/{split}/Loss"
    for split in reversed(SPLITS):
        if any(past.split == split and "Loss" in block.columns for past in record for block in past.blocks):
            return f"/series/{split}/Loss"
    return "/run"


# Measurements ----------------------------------------------------------------------------------------


_Stretch = tuple[MetricBlock, int, int]
"""Rows of a block: the first one, and the end."""


@dataclass
class _Steps:
    """The rows of a split: blocks that follow each other. Columns are made a few rows at a time, because
    the allocator would keep the memory of the whole columns of a long run."""

    blocks: Sequence[MetricBlock]
    split: Split
    clock: Clock

    @property
    def count(self) -> int:
        return sum(block.count for block in self.blocks)

    def column(self, values_of: Callable[[_Steps, list[_Stretch]], NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """A column, part by part."""
        return (values_of(self, part) for part in self._parts())

    def _parts(self) -> Iterator[list[_Stretch]]:
        part: list[_Stretch] = []
        rows = 0
        for block in self.blocks:
            for start in range(0, block.count, _ROWS):
                end = min(start + _ROWS, block.count)
                part.append((block, start, end))
                rows += end - start
                if rows >= _ROWS:
                    yield part
                    part, rows = [], 0
        if part:
            yield part


def _write_series(group: IndexGroup, run: RunInfo, record: Record, clock: Clock) -> None:
    for split in SPLITS:
        steps = _steps(record, split, clock)
        if not steps.count:
            continue
        infos = {info.name: info for info in run.metrics if info.split == split}
        _write_steps(group.group(split, "NXsubentry"), steps, infos, "iteration")


def _write_steps(home: IndexGroup, steps: _Steps, infos: Mapping[str, MetricInfo], axis: str) -> None:
    count = steps.count
    positions = {name: home.unnamed(count, steps.column(values_of)) for name, values_of in _SHARED.items()}
    known: list[tuple[list[int], Any]] = []
    for name in _names(steps.blocks, "columns"):
        each = home.plot(name, "value", axis)
        value = home.unnamed(count, steps.column(partial(_values, name)))
        each.link("value", value)
        value.attributes(_labels(name, infos.get(name)))
        _write_weights(each, steps, name, known)
        for position, dataset in positions.items():
            each.link(position, dataset)
    for name in _names(steps.blocks, "texts"):
        _write_texts(home.group(name), steps, name)


def _write_evaluated(series: IndexGroup, epochs: IndexGroup, evaluated: Sequence[Evaluated]) -> None:
    for each in evaluated:
        infos = {info.name: info for info in each.metrics}
        if each.record.blocks:
            steps = _steps((each.record,), "valid", Clock())
            _write_steps(series.group(each.name, "NXsubentry"), steps, infos, "step")
        if each.record.finals:
            _write_finals(epochs.group(each.name, "NXsubentry"), (each.record,), infos)


def _write_weights(group: IndexGroup, steps: _Steps, name: str, known: list[tuple[list[int], Any]]) -> None:
    """The weights of most metrics are the same arrays: these are written once."""
    columns = [block.columns.get(name) for block in steps.blocks]
    if all(column is None or column.weights is None for column in columns):
        return
    arrays = [0 if column is None else id(column.weights) for column in columns]
    for same, dataset in known:
        if same == arrays:
            group.link("weight", dataset)
            return
    dataset = group.unnamed(steps.count, steps.column(partial(_weights, name)))
    group.link("weight", dataset)
    known.append((arrays, dataset))


def _write_texts(group: IndexGroup, steps: _Steps, name: str) -> None:
    rows, texts = _changes(steps.blocks, name)
    group.texts("text", texts, _LARGEST_TEXTS)
    for position, values_of in _SHARED.items():
        group.dataset(position, _chosen(steps.column(values_of), rows))


def _write_epochs(group: IndexGroup, run: RunInfo, record: Record) -> None:
    for split in SPLITS:
        ended = [past for past in record if past.split == split and past.finals is not None]
        if not ended:
            continue
        infos = {info.name: info for info in run.metrics if info.split == split}
        _write_finals(group.group(split, "NXsubentry"), ended, infos)


def _write_finals(home: IndexGroup, ended: Sequence[SplitRecord], infos: Mapping[str, MetricInfo]) -> None:
    epochs = home.unnamed(len(ended), [np.array([past.epoch for past in ended], np.int64)])
    for name in dict.fromkeys(name for past in ended for name in past.finals or ()):
        each = home.plot(name, "value", "epoch")
        values = [(past.finals or {}).get(name, np.nan) for past in ended]
        each.dataset("value", np.array(values, np.float64)).attributes(_labels(name, infos.get(name)))
        each.link("epoch", epochs)


def _labels(name: str, info: MetricInfo | None) -> dict[str, str]:
    return {"long_name": name, "units": info.unit} if info is not None and info.unit else {"long_name": name}


def _steps(record: Record, split: Split, clock: Clock) -> _Steps:
    return _Steps([block for past in record if past.split == split for block in past.blocks], split, clock)


def _chosen(parts: Iterator[NDArray[Any]], rows: Sequence[int]) -> NDArray[Any]:
    """Some rows of a column."""
    chosen, at, wanted = [], 0, np.array(rows, np.int64)
    for values in parts:
        here = wanted[(wanted >= at) & (wanted < at + len(values))]
        chosen.append(values[here - at])
        at += len(values)
    return np.concatenate(chosen)


def _epoch(steps: _Steps, part: list[_Stretch]) -> NDArray[np.int64]:
    return np.repeat(_numbers(block.epoch for block, _, _ in part), _counts(part))


def _step(steps: _Steps, part: list[_Stretch]) -> NDArray[np.int64]:
    return _counted_from(_numbers(block.first + start for block, start, _ in part), _counts(part))


def _iteration(steps: _Steps, part: list[_Stretch]) -> NDArray[np.int64]:
    if steps.split == "train":
        before = _numbers(block.iteration - block.count + 1 + start for block, start, _ in part)
        return _counted_from(before, _counts(part))
    return np.repeat(_numbers(block.iteration for block, _, _ in part), _counts(part))


def _time(steps: _Steps, part: list[_Stretch]) -> Floats:
    return np.concatenate(
        [
            steps.clock.times(epoch, steps.split, _step(steps, list(stretches)))
            for epoch, stretches in groupby(part, key=lambda stretch: stretch[0].epoch)
        ]
    )


_SHARED = {"epoch": _epoch, "step": _step, "iteration": _iteration, "time": _time}


def _counts(part: list[_Stretch]) -> NDArray[np.int64]:
    return _numbers(end - start for _, start, end in part)


def _counted_from(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending numbers: for each first number, so many of them."""
    starts = np.cumsum(counts) - counts
    within: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(firsts - starts, counts)
    return within


def _numbers(numbers: Any) -> NDArray[np.int64]:
    return np.fromiter(numbers, np.int64)


def _names(blocks: Sequence[MetricBlock], what: str) -> list[str]:
    return list(dict.fromkeys(name for block in blocks for name in getattr(block, what)))


def _values(name: str, steps: _Steps, part: list[_Stretch]) -> Floats:
    columns = [(block.columns.get(name), start, end) for block, start, end in part]
    return np.concatenate(
        [
            np.full(end - start, np.nan) if column is None else column.values[start:end]
            for column, start, end in columns
        ]
    )


def _weights(name: str, steps: _Steps, part: list[_Stretch]) -> Floats:
    parts = []
    for block, start, end in part:
        column = block.columns.get(name)
        if column is None or column.weights is None:
            parts.append(np.full(end - start, 0.0 if column is None else 1.0))
        else:
            parts.append(column.weights[start:end])
    return np.concatenate(parts)


def _changes(blocks: Sequence[MetricBlock], name: str) -> tuple[list[int], list[str]]:
    """The rows at which a text metric changes, and its texts there: the latest `_MOST_TEXTS`."""
    changes: deque[tuple[int, str]] = deque(maxlen=_MOST_TEXTS)
    row = 0
    for block in blocks:
        here = row
        if name in block.texts:
            for count, text in text_runs(block, name):
                if not changes or changes[-1][1] != text:
                    changes.append((here, text))
                here += count
        row += block.count
    return [at for at, _ in changes], [text for _, text in changes]


def _example() -> bytes:
    """A run of two steps, for the text above."""
    opened = RunOpened("runs/digits", "Net", 1290, 1, (MetricInfo("Loss", "train"),))
    loss = Column(np.array([0.75, 0.25]), np.array([32.0, 32.0]))
    block = MetricBlock(1, "train", 1, 2, 2, {"Loss": loss}, {}, 0.1)
    record = (SplitRecord(1, "train", (block,), {"Loss": 0.5}),)
    return encode_index(RunInfo.of(opened, 0.0), record, Clock(), (), ())

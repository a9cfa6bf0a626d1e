"""Reads the record of a run from its directory of metric logs."""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from ..errors import DamagedError, NoDescriptorsError, StoreError
from ..event.record import between
from ..event.texts import Texts
from ..event.values import Column, Evaluated, Floats, MetricBlock, MetricInfo, Record, Split, SplitRecord
from ..logger.application import unquoted
from ..store import durable, files
from ..store.layout import SPLITS, TEST, RunLayout, check_metric_name, check_set_name, file_name, is_inside
from ..store.log_lines import BLOCK, LARGEST, LONGEST_LINE, LogLines, numbers_of
from .timeline import TimelineMark, read_timeline

_EPOCH = re.compile(r"epoch-([1-9][0-9]{0,17})")
_SUFFIX = ".log"
_NOT_LOST = (
    errno.EIO,
    errno.EINTR,
    errno.EACCES,
    errno.EPERM,
    errno.ENOMEM,
    errno.EFBIG,
)
"""Errors with which the log itself may still be whole."""


class _Skipped(Exception):
    """Why a file is skipped."""


@dataclass
class _Log:
    """One metric of one pass."""

    values: Floats = field(default_factory=lambda: np.empty(0))
    weights: Floats | None = None
    final: float | None = None
    texts: Texts | None = None
    """The lines of a text metric."""

    def __len__(self) -> int:
        return len(self.values) if self.texts is None else self.texts.steps

    @property
    def is_weighted(self) -> bool:
        return self.weights is not None or self.final is not None


def read_record(
    directory: str | os.PathLike[str],
    infos: Iterable[MetricInfo] = (),
    problems: list[str] | None = None,
    *,
    strict: bool = False,
    trained: int = 0,
) -> Record:
    """Read the metric logs below `directory`, pass by pass, also while the run trains.

    `infos` give the metrics their names back (a log's name has `_` for a space), and distinguish numbers
    from texts that look like numbers. A pass that has not ended has as many steps as its shortest log: a
    process that is killed between two writes leaves the other logs longer. In a pass that has ended, a
    metric that was not measured to the end has no value at its last steps. A file that is not a log, cannot
    be read or leads out of the directory is skipped, and reported in `problems`. With `strict`, a log that
    cannot be read raises its OSError: a caller that will cut the logs must not treat it as lost. `trained` is
    the number of training steps before the first pass.

    >>> import tempfile
    >>> from pathlib import Path
    >>> run = tempfile.TemporaryDirectory()
    >>> folder = Path(run.name, "train", "epoch-1")
    >>> folder.mkdir(parents=True)
    >>> _ = (folder / "Loss.log").write_text("0.75,32\\n0.25,32\\n0.5,final\\n")
    >>> (past,) = read_record(run.name)
    >>> past.epoch, past.split, past.steps, past.finals
    (1, 'train', 2, {'Loss': 0.5})
    >>> past.blocks[0].columns["Loss"].values
    array([0.75, 0.25])
    >>> run.cleanup()
    """
    reader = _Reader(Path(directory), infos, [] if problems is None else problems, strict)
    return tuple(reader.passes(trained))


def read_evaluations(
    directory: str | os.PathLike[str],
    infos: Iterable[MetricInfo] = (),
    problems: list[str] | None = None,
) -> dict[str, SplitRecord]:
    """Read the logs below `test`, set by set. Each is a "valid" pass of epoch 0, because the logs do not say
    which weights were measured."""
    reader = _Reader(Path(directory), infos, [] if problems is None else problems)
    return dict(reader.evaluations())


class _Reader:
    def __init__(
        self, directory: Path, infos: Iterable[MetricInfo], problems: list[str], strict: bool = False
    ) -> None:
        self.directory = directory
        self.problems = problems
        self.strict = strict
        self._plain = ""
        """The folder that was listed last, if no link leads to it: a file in it needs only one look."""
        self._infos: dict[Split, dict[str, MetricInfo]] = {"train": {}, "valid": {}}
        for info in infos:
            if check_metric_name(info.name) is None:
                self._infos[info.split][file_name(info.name)] = info

    def passes(self, trained: int = 0) -> Iterator[SplitRecord]:
        last = RunLayout(self.directory).last_epoch()
        folders = {split: self._epochs(split) for split in SPLITS}
        epochs = sorted({epoch for found in folders.values() for epoch in found if epoch <= last})
        self._report_gaps(epochs if trained else [0, *epochs])  # a branch may begin in a later epoch
        for epoch in epochs:
            for split in SPLITS:
                folder = folders[split].get(epoch)
                logs = {} if folder is None else self._logs(folder, split)
                if logs:
                    past = _pass(epoch, split, logs, trained)
                    trained += past.steps if split == "train" else 0
                    yield past

    def evaluations(self) -> Iterator[tuple[str, SplitRecord]]:
        root = self.directory / TEST
        for name in self._names(root):
            if name.startswith(".") and name.endswith(".tmp"):
                continue  # being written, or left by a process that was killed
            if check_set_name(name) is not None:
                self._report(root / name, "is no folder of a set")
            elif logs := self._logs(root / name, "valid"):
                yield name, _pass(0, "valid", logs, 0)

    def _report_gaps(self, epochs: Sequence[int]) -> None:
        for before, after in pairwise(epochs):
            if after != before + 1:
                self._report(self.directory, f"has no logs of epochs {before + 1} to {after - 1}")

    def _epochs(self, split: Split) -> dict[int, Path]:
        found = {}
        root = self.directory / split
        for name in self._names(root):
            match = _EPOCH.fullmatch(name)
            if match is None:
                self._report(root / name, "is no folder of an epoch")
            else:
                found[int(match[1])] = root / name
        return found

    def _logs(self, folder: Path, split: Split) -> dict[str, _Log]:
        """The logs of the pass by metric name; metrics that were announced come first."""
        known = self._infos[split]
        names = self._names(folder)
        logs = {}
        for name in [each for each in known if each in names] + [each for each in names if each not in known]:
            info = known.get(name)
            metric = info.name if info is not None else name[: -len(_SUFFIX)]
            try:
                if not name.endswith(_SUFFIX) or check_metric_name(metric) is not None:
                    raise _Skipped("is no metric log")
                log = self._log(folder / name, info)
            except _Skipped as reason:
                self._report(folder / name, str(reason))
                continue
            if len(log) or log.final is not None:  # one that was only just opened says nothing
                logs[metric] = log
        return logs

    def _names(self, folder: Path) -> list[str]:
        try:
            inside = self._inside(folder)
            self._plain = os.fspath(folder) if inside is folder else ""
            return files.names_in(inside)
        except _Skipped as reason:
            self._report(folder, str(reason))
        except OSError as error:
            self._refuse_if_strict(error)
            self._report(folder, error.strerror or str(error))
        return []

    def _refuse_if_strict(self, error: OSError) -> None:
        if isinstance(error, NoDescriptorsError) or (self.strict and error.errno in _NOT_LOST):
            raise error

    def _log(self, path: Path, info: MetricInfo | None) -> _Log:
        """Read the whole lines of a log up to the first NUL byte: after a power cut a file may end in blocks
        of NUL bytes."""
        try:
            with durable.opened(self._inside(path)) as file:
                if file.size > LARGEST:
                    raise OSError(
                        errno.EFBIG, f"has {file.size:,} bytes; one of over {LARGEST:,} is not read"
                    )
                lines = LogLines(file, BLOCK)
                log = _parsed(lines, info)
        except OSError as error:
            self._refuse_if_strict(error)
            raise _Skipped(error.strerror or str(error)) from None
        except DamagedError:
            raise _Skipped("was cut while it was read") from None
        except MemoryError:
            raise StoreError(
                f"the values in {path} do not fit into memory; free memory in this process, or end other "
                "processes, and try again"
            ) from None
        if lines.nul is not None:
            self._report(path, f"has NUL bytes from byte {lines.nul} on, as a power cut leaves them")
        return log

    def _inside(self, path: Path) -> Path:
        """Refuse a path that leads out of the run's directory."""
        is_link = os.path.islink(path)
        if not is_link and os.path.dirname(path) == self._plain:
            return path
        if not is_inside(path, self.directory):
            raise _Skipped("is a link that leads out of the run's directory")
        return Path(os.path.realpath(path)) if is_link else path

    def _report(self, path: Path, what: str) -> None:
        self.problems.append(f"{os.fspath(path)!r} {what}")


# One log ---------------------------------------------------------------------------------------------


def _parsed(lines: LogLines, info: MetricInfo | None) -> _Log:
    """Read the whole lines of a log."""
    if info is None or info.kind == "numeric":
        log = _numbers(lines)
        if log is not None:
            return log
        if info is not None:
            raise _Skipped("holds lines that are no numbers")
    return _Log(texts=_texts(lines))


def _numbers(lines: LogLines) -> _Log | None:
    """The values of a numeric log; None if the lines are not numbers of one shape."""
    found = numbers_of(_refusing_too_long(lines))
    return None if found is None else _Log(found.values, found.weights, found.final)


def _texts(lines: LogLines) -> Texts:
    """The lines, with equal neighbours joined."""
    texts = Texts()
    for block in _refusing_too_long(lines):
        try:
            block.decode()
        except UnicodeDecodeError:
            raise _Skipped("is no text in UTF-8") from None
        texts.add_lines(block.split(b"\n")[:-1])
    return texts


def _refusing_too_long(lines: LogLines) -> Iterator[bytes]:
    yield from lines
    if lines.too_long:
        raise _Skipped(f"has a line of more than {LONGEST_LINE:,} bytes, which no metric writes")


# One pass --------------------------------------------------------------------------------------------


def _pass(epoch: int, split: Split, logs: Mapping[str, _Log], trained: int) -> SplitRecord:
    weighted = [log for log in logs.values() if log.is_weighted]
    ended = bool(weighted) and all(log.final is not None for log in weighted)
    lengths = [len(log) for log in logs.values() if len(log)]
    count = (max if ended else min)(lengths, default=0)
    finals = {name: log.final for name, log in logs.items() if log.final is not None} if ended else None
    blocks = (_block(epoch, split, logs, count, trained),) if count else ()
    return SplitRecord(epoch, split, blocks, finals)


def _block(epoch: int, split: Split, logs: Mapping[str, _Log], count: int, trained: int) -> MetricBlock:
    with_rows = {name: log for name, log in logs.items() if len(log)}
    texts = {name: _of_length(log.texts, count) for name, log in with_rows.items() if log.texts is not None}
    return MetricBlock(
        epoch=epoch,
        split=split,
        first=1,
        count=count,
        iteration=trained + (count if split == "train" else 0),
        columns={name: _column(log, count) for name, log in with_rows.items() if log.texts is None},
        texts={name: told[-1][1] for name, told in texts.items()},
        seconds=0.0,
        text_runs={name: told for name, told in texts.items() if len(told) > 1},
    )


def _column(log: _Log, count: int) -> Column:
    weights = None if log.weights is None else _padded(log.weights, count, 0.0)
    return Column(_padded(log.values, count, np.nan), weights)


def _padded(values: Floats, count: int, blank: float) -> Floats:
    if len(values) >= count:
        return values[:count]
    return np.concatenate([values, np.full(count - len(values), blank)])


def _of_length(texts: Texts, count: int) -> Texts:
    """The texts, cut or filled up with empty lines to this length."""
    if texts.steps > count:
        return Texts.of(between(texts, 0, count))
    texts.add(count - texts.steps, "")
    return texts


def evaluated_in(
    directory: str | os.PathLike[str],
    infos: Iterable[MetricInfo],
    marks: Sequence[TimelineMark],
    record: Record,
) -> list[Evaluated]:
    """The evaluations whose logs lie in a run's directory, the latest last.

    A set that is not on the timeline has epoch 0.

    Args:
        directory: the directory of the run.
        infos: what is known of its metrics.
        marks: its timeline.
        record: what was measured of its training.
    """
    known = tuple(info for info in infos if info.split == "valid")
    sets = read_evaluations(directory, known)
    if sets:  # another process may have evaluated a set: all processes write to the application log
        logged = read_timeline(RunLayout(directory).experiment_log)
        marks = sorted([*marks, *logged], key=lambda mark: mark.when)
    latest = marks_of(marks)
    found = [(latest.get(name, _UNKNOWN), name, past) for name, past in sets.items()]
    found.sort(key=lambda each: each[0].when)
    steps = [(past.epoch, past.steps) for past in record if past.split == "train"]
    epochs = [epoch for epoch, _ in steps]
    trained = [0, *accumulate(count for _, count in steps)]
    evaluated = []
    for mark, name, past in found:
        before = trained[bisect_left(epochs, mark.epoch)]
        at = before + mark.step if mark.split == "train" else trained[bisect_right(epochs, mark.epoch)]
        blocks = tuple(replace(block, epoch=mark.epoch, iteration=at) for block in past.blocks)
        measured = {*(past.finals or ()), *(metric for block in blocks for metric in block.columns)}
        evaluated.append(
            Evaluated(
                name,
                mark.epoch,
                mark.split,
                mark.step,
                replace(past, epoch=mark.epoch, blocks=blocks),
                tuple(info for info in known if info.name in measured),
            )
        )
    return evaluated


def marks_of(marks: Sequence[TimelineMark]) -> dict[str, TimelineMark]:
    """The last evaluation of each set, by its name. The name of a set has no colon."""
    found = {}
    for mark in marks:
        if mark.kind == "evaluated":
            name = mark.text.partition(": ")[0]
            found[name] = found[unquoted(name)] = mark  # as artifacts.h5 has it, and the application log
    return found


_UNKNOWN = TimelineMark("evaluated", 0, "train", 0, 0.0)
"""For a set whose weights the timeline does not name."""

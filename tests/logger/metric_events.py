"""Blocks and small runs, made up."""

import numpy as np

from notebook_learner.event import Column, MetricBlock, SplitEnded, SplitRecord, SplitStarted


def block(first, values, split="train", epoch=1, weight=32.0, texts=None, extra=None, readings=None):
    """Steps from `first` on with a Loss of these values."""
    values = np.array(values, dtype=np.float64)
    count = len(values)
    columns = {"Loss": Column(values, np.full(count, weight))}
    if extra is not None:
        columns["Top-K Accuracy @ TopK(5)"] = Column(np.full(count, extra), np.full(count, weight))
    if readings is not None:
        columns["CPU Usage"] = Column(np.full(count, readings))
    iteration = first + count - 1 if split == "train" else 0
    return MetricBlock(epoch, split, first, count, iteration, columns, texts or {}, 0.1)


def play(sink, record):
    """Emit the events of a straight run that measured `record`."""
    for past in record:
        sink.handle(SplitStarted(past.epoch, past.split, None, 9))
        for each in past.blocks:
            sink.handle(each)
        if past.finals is not None:
            sink.handle(SplitEnded(past.epoch, past.split, past.steps, past.finals))


def record_of(*passes):
    """(epoch, split, blocks, finals) tuples as a record."""
    return tuple(SplitRecord(epoch, split, tuple(blocks), finals) for epoch, split, blocks, finals in passes)


def tree(directory):
    """Every file and folder below, with the files' bytes."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }

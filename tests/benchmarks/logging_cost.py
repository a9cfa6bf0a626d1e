"""What a value that is logged costs, in its text log and in `artifacts.h5`: CPU time of the thread that
handles the events, over epochs of 1,000 steps with two metrics in blocks of 160 rows."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch

from notebook_learner.artifacts.live_index import LiveIndex
from notebook_learner.event import (
    Column,
    EpochEnded,
    Event,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SplitEnded,
    SplitStarted,
)
from notebook_learner.logger import FileMetricLogger, History

STEPS, ROWS, EPOCHS = 1000, 160, 50
METRICS = ("Loss", "Accuracy")


def events(epoch: int) -> list[Event]:
    """One epoch as a learner tells it."""
    values = np.random.default_rng(epoch)
    told: list[Event] = [SplitStarted(epoch, "train", STEPS, epoch)]
    for first in range(1, STEPS + 1, ROWS):
        count = min(ROWS, STEPS + 1 - first)
        columns = {name: Column(values.random(count), np.full(count, 32.0)) for name in METRICS}
        iteration = (epoch - 1) * STEPS + first + count - 1
        told.append(MetricBlock(epoch, "train", first, count, iteration, columns, {}, 0.1))
    told.append(SplitEnded(epoch, "train", STEPS, dict.fromkeys(METRICS, 0.5)))
    told.append(EpochEnded(epoch, EPOCHS))
    return told


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        history, logger = History(), FileMetricLogger(directory)
        jobs: list[Callable[[], None]] = []
        index = LiveIndex(directory, history.snapshot, tuple, jobs.append)
        infos = tuple(MetricInfo(name, "train") for name in METRICS)
        for sink in (history, logger, index):
            sink.handle(RunOpened(directory, "Net", 0, EPOCHS, infos))
        text, notes, written = [], [], []
        for epoch in range(1, EPOCHS + 1):
            told = events(epoch)
            for event in told:
                history.handle(event)
            text.append(timed(lambda told=told: [logger.handle(event) for event in told]))
            notes.append(timed(lambda told=told: [index.handle(event) for event in told]))
            jobs[:] = jobs or [index._job]  # it rests between two files; here every epoch writes one
            written.append(timed(jobs.pop()))
        logger.close()
    values = STEPS * len(METRICS)
    print(f"torch {torch.__version__}; us of CPU a value, medians of {EPOCHS} epochs of {values} values")
    for what, times in (("text", text), ("notes for artifacts.h5", notes)):
        print(f"  {what:34}{statistics.median(times) / values * 1e6:8.3f}")
    once = written[-1] / EPOCHS
    print(f"  {'artifacts.h5, written once':34}{once / values * 1e6:8.3f}")
    print(f"  {'artifacts.h5, at every epoch':34}{sum(written) / EPOCHS / values * 1e6:8.3f}")
    per_epoch = statistics.median(text) + statistics.median(notes) + once
    print(f"  {'text, notes, and the file once':34}{per_epoch / values * 1e6:8.3f}")
    print("A training's artifacts.h5 rests 100 times as long as it took: at most 1 % of the time, elsewhere.")


def timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began

"""All that a run writes to its directory: checkpoints, logs and `artifacts.h5`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...artifacts.branches import ORIGIN
from ...artifacts.live_index import LiveIndex
from ...artifacts.read_record import read_record
from ...artifacts.weights import Base
from ...checkpoint.folder import CheckpointFolder
from ...checkpoint.hdf5 import Hdf5Recorder
from ...checkpoint.info import CheckpointInfo
from ...checkpoint.keeper import Keeper
from ...checkpoint.strategy import DEFAULT, resolved
from ...errors import MovedError
from ...event import CheckpointSaved, MetricInfo, Notice, Record, RunOpened, Sink, SplitRecord
from ...logger import ApplicationLogger, FileMetricLogger
from ...logger.branches import BranchLogger
from ...metric.base import Metric
from ...recipe.run_recipe import RunRecipe
from ...run.saving import Saving, autosave_of
from ...run.settings import PRECISIONS, Registered, Settings
from ...state.checkpoint_files import FileCheckpointer
from ...step.optimizers import kind_of
from ...step.schedule import Schedule
from ...store import RunLayout
from ...store.background import Background, Job


class Storing:
    """The writing side of one learner."""

    def __init__(
        self,
        settings: Settings,
        metrics: tuple[MetricInfo, ...],
        record: Callable[[], Record],
        model: nn.Module,
        recipe: RunRecipe,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.record = record
        self.recipe = recipe
        """What made the run."""
        self.layout = RunLayout(os.fspath(settings.directory))
        self.background = Background()
        self.emit: Callable[[Notice | CheckpointSaved], None] = lambda event: None
        """Sends an event; set when the learner has sinks."""
        self.ask: Callable[[], None] = lambda: None
        """Set to a function that raises if the directory is not the opened one."""
        self.keeper = self._keeper()
        self.index = self._index()
        self.store = FileCheckpointer(
            self.layout.directory,
            self.keeper,
            self._about,
            self._clock,
            self.metrics,
            self.record,
            None if settings.base is None else Base(settings.base, model),
            model,
            partial(recipe.text, wait=True),
        )
        self.store.keeps_start = settings.keeps_start
        recipe.found = lambda: self.store.recipe_found
        self.branches = BranchLogger(
            self.layout.directory,
            lambda resumes: (self.store.left if resumes else self.store.lineage).plain,
            self.recipe.leave,
            self.recipe.at,
            lambda folder: read_record(folder, self.metrics),
        )
        self.writers = self._writers()
        """The sinks that write in the run's directory."""

    @property
    def listeners(self) -> list[Sink]:
        """The user's own sinks, which write to other places and must lose nothing either."""
        target = self.settings.application_log
        own = [] if isinstance(target, bool) else [ApplicationLogger(target)]
        return [*self.settings.loggers, *own]

    def _writers(self) -> list[Sink]:
        elsewhere = self.settings.loggers and not self.settings.detached
        found: list[Sink] = []
        if not elsewhere:
            found = [self.branches, FileMetricLogger(self.layout.directory)]
        if self.settings.application_log is True:
            found.append(ApplicationLogger(self.layout.experiment_log))
        found.append(self.recipe)
        return found if self.index is None else [*found, self.index]

    def saving(self) -> Saving:
        """When states are kept, and where."""
        settings, store = self.settings, self.store
        autosave = autosave_of(settings.autosave)
        if settings.detached:  # only this process knows where the run stands
            autosave = replace(autosave, on_pause=True)
        if not settings.files_asked:
            return Saving(settings.checkpointer, store, autosave if settings.detached else None)
        return Saving(store, store, autosave)

    def finish(self) -> None:
        """Wait until everything that was handed over is on the disk, and close open files. What a disk
        refuses is kept, and the next verb reports it."""
        self.background.wait()
        for writer in self.writers:
            if isinstance(writer, (FileMetricLogger, ApplicationLogger)):
                with suppress(OSError):
                    writer.close()

    def forget(self) -> None:
        """Forget all that was read in the directory: the files are not there any more."""
        self.store.forget()

    def give_way(self, place: Path | None) -> None:
        """Give the directory to another run; this run's files are at `place`, or were deleted if it is
        None."""
        self.keeper.give_way()
        if place is not None:
            self.layout.directory = RunLayout(place).directory
            self.keeper.folder.path = self.layout.checkpoint

    def lend(self) -> None:
        """Stop writing, and forget the files: another process goes on with the run."""
        self.finish()
        self.keeper.forget()
        self.store.stand_by()

    def take_back(self) -> list[Sink]:
        """Make the writers again after the other process has ended: what they knew of the files is old."""
        self.index = self._index()
        self.writers = self._writers()
        self.keeper.open()
        return self.writers

    def _keeper(self) -> Keeper:
        strategy = self.settings.strategy or DEFAULT
        directions: dict[tuple[str, str], bool | None] = {
            (info.split, info.name): info.higher_is_better for info in self.metrics
        }
        keeper = Keeper(
            CheckpointFolder(self.layout.checkpoint, self.settings.recorder or Hdf5Recorder()),
            resolved(strategy, lambda split, name: directions.get((split, name))),
            self.background,
            after=self._saved,
            tell=lambda text: self.emit(Notice(text, "warning")),
            announce=self._announce,
        )
        keeper.ask = lambda: self.ask()
        return keeper

    def _index(self) -> LiveIndex | None:
        """Make the index for `artifacts.h5`, which is written if logs or checkpoints are."""
        if self.settings.loggers and not self.settings.files_asked:
            return None
        recipe = partial(self.recipe.text, wait=True)
        return LiveIndex(self.layout.directory, self.record, self.keeper.open, self._submit, recipe=recipe)

    def _submit(self, job: Job) -> None:
        self.background.submit("artifacts.h5", lambda: self._derived(job))

    def _derived(self, job: Job) -> None:
        """Write `artifacts.h5`. A failure must not stop the training, as the file can always be made
        again."""
        try:
            self.ask()
            job()
        except MovedError:
            pass  # the next boundary reports it
        except OSError as error:
            self.keeper.note(
                f"artifacts.h5 could not be written ({error.strerror or error}); logs and checkpoints hold "
                "all of it, and the next epoch tries again"
            )

    def _saved(self) -> None:
        if self.index is not None:
            self.index.refresh()

    def _announce(self, info: CheckpointInfo) -> None:
        self.emit(CheckpointSaved(info.label, info.epoch, info.split, info.step, info.size))

    def _about(self, passes: Sequence[SplitRecord]) -> dict[str, Any]:
        best = self.keeper.best
        rule = None if best is None else {"metric": best.metric, "split": best.split, "mode": best.mode}
        run = {} if self.index is None else {**self.index.about(), "clock": self._clock(passes)}
        return {"run": run, "best": rule}

    def _clock(self, passes: Sequence[SplitRecord]) -> Sequence[Any]:
        return () if self.index is None else self.index.clock(passes)


_PRECISION_NAMES = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def opening(
    settings: Settings,
    model: nn.Module,
    registered: Iterable[Registered],
    device: torch.device,
    optimizer: Optimizer,
    schedule: Schedule,
) -> RunOpened:
    """Make the event that a run begins with."""
    return RunOpened(
        str(settings.directory),
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        settings.num_epochs,
        tuple(_info(each) for each in registered),
        {
            "device": ", ".join(map(str, settings.devices or [device])),
            "precision": _PRECISION_NAMES[PRECISIONS[settings.precision]],
            "optimizer": kind_of(optimizer),
            "learning rate": str(schedule),
            **_options(settings),
        },
    )


def _info(registered: Registered) -> MetricInfo:
    metric = registered.metric
    if isinstance(metric, Metric):
        told = metric.name, registered.split, metric.unit, metric.higher_is_better
        return MetricInfo(*told, plotted=registered.plotted, of_epochs=metric.weighted)
    return MetricInfo(metric.name, registered.split, kind="text", plotted=False)


def _options(settings: Settings) -> Mapping[str, str]:
    """The settings that differ from the defaults."""
    words = {}
    if settings.share is not None and settings.batch == "per_device":
        words["batch"] = "per device"
    if settings.data == "device":
        words["data"] = "on the device"
    if settings.prefetch:
        words["prefetch"] = "batches are copied on a stream of their own"
    if settings.window > 1:
        words["accumulation"] = f"{settings.window} batches"
    clips = {"norm": settings.clip_norm, "value": settings.clip_value}
    if limits := [f"{name} {limit:g}" for name, limit in clips.items() if limit is not None]:
        words["clipping"] = ", ".join(limits)
    if settings.ema_decay is not None:
        words["average"] = f"EMA {settings.ema_decay:g}"
    if settings.compile is not None:
        words["compiled"] = ", ".join(f"{k}={v}" for k, v in settings.compile.items()) or "yes"
    if settings.graph:
        words["steps"] = "recorded"
    if settings.early_stopping is not None:
        rule = settings.early_stopping
        words["early stopping"] = f"{rule.split} {rule.metric}, patience {rule.patience}"
    if settings.parent:
        words[ORIGIN] = settings.parent
    if settings.seed is not None:
        words["seed"] = str(settings.seed)
    return words

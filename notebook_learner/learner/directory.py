"""A Learner's verbs for its run's directory: it enters, reads there, and hands it to another process."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from ..artifacts import Checkpoints
from ..errors import names_descriptors
from ..event import Notice
from ..run.control import Request
from ..run.step_reports import HandedOver, RunTakenBack
from ..state.state import State
from ..step.options import Options, options_of, other_options
from .core import Batches, LearnerCore
from .resumed_settings import KEPT, NOT_COMPARED, Members, OwnSchedule, differences

T = TypeVar("T")


class DirectoryVerbs(LearnerCore):
    """What every Learner has; a class of its own only because a file has one subject."""

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints in the run's directory, in the order they were saved, as a table."""
        self._driver.require_own()
        return Checkpoints(self._replica.saving.checkpoints())

    @property
    def _elsewhere(self) -> str:
        """The other process, or learner, that goes on with this run; empty if this learner has it."""
        return self._premises.away

    def _look_for_checkpoints(self) -> Checkpoints:
        """Like `checkpoints`, before any training; another writer in the directory finishes first."""
        try:
            self._premises.look_in()
            return self.checkpoints
        finally:
            self._premises.look_away()
            self._rest()

    def _moved_to(self, directory: os.PathLike[str]) -> None:
        """End this run, whose files were moved: a newer run has its directory."""
        self._opened = replace(self._opened, directory=os.fspath(directory))

    def _restore_checkpoint(self, which: int | str, *, given: bool = False) -> None:
        """Go to a checkpoint. If another process saved it, tell which options differ from those that the
        optimizer was built with; `given` takes those."""
        update, recipe = self._replica.loop.update, self._supplies.recipe
        before, first = options_of(update.optimizer), not self._replica.history.snapshot()
        own = OwnSchedule(update.optimizer, update.schedule)
        cell = recipe.members() if first else {}

        def adapt(state: State) -> None:
            if first:
                own.stand_for(state, cell, recipe.of_checkpoint(), given)

        try:
            self._premises.look_in()
            self._replica.restore_checkpoint(which, self._go_on, adapt)
            self._settle()
        finally:
            self._premises.look_away()
        if first:
            self._tell_of_options(before, given)
            self._tell_of_settings(cell, own, given)

    def _tell_of_options(self, before: Options, given: bool) -> None:
        update = self._replica.loop.update
        others = list(other_options(before, update.optimizer, update.schedule))
        taken = [each.take() if given else str(each) for each in others]
        for text in taken:
            self._emit(Notice(text, "warning"))
        if given and any(not each.moved for each in others):
            update.note_rates()
            self._edited(f"the cell's settings: {', '.join(each.label for each in others if not each.moved)}")

    def _tell_of_settings(self, cell: Members, own: OwnSchedule, given: bool) -> None:
        """Tell in what else the program and the checkpoint differ, and let hold what does."""
        checkpoint = self._supplies.recipe.of_checkpoint()
        given_data = {f"data.{split}" for split in self._supplies.given()}
        self._compared_with = {
            name: each
            for name, each in checkpoint.items()
            if name.startswith("data.") and name not in given_data
        }
        if not checkpoint:
            self._emit(Notice(NOT_COMPARED))
        for each in differences(cell, checkpoint) if checkpoint else ():
            if each.name == "seed":
                (self._supplies.use_seed if given else self._supplies.keep_seed)(
                    each.cell if given else each.checkpoint
                )
            took = given and (each.group != "schedule" or each.name == "schedule" or own.take(each.name))
            self._emit(Notice(each.said(took), each.level))
            if took and each.group in KEPT:
                self._edited(f"the cell's settings: {each.name}")

    def _tell_of_data(self) -> None:
        """Compare data that came after the checkpoint with what that was trained on."""
        came = {f"data.{split}" for split in self._supplies.given()} & self._compared_with.keys()
        if came:
            cell = self._supplies.recipe.members()
            checkpoint = {name: self._compared_with[name] for name in came}
            for each in differences({name: cell[name] for name in came if name in cell}, checkpoint):
                self._emit(Notice(each.said(False), each.level))
            self._compared_with = {
                name: each for name, each in self._compared_with.items() if name not in came
            }

    _compared_with: Members = MappingProxyType({})
    """The fingerprints of what a checkpoint of another process was trained on, for data that comes later."""

    def _go_on(self) -> None:
        self._enter(goes_on=True)
        self._announce()

    _away: Any = None
    """The process that the run was handed over to."""

    def _ask(self, what: Request) -> bool:
        """Ask the thread that drives, if there is one. A detached process is asked in another way."""
        if self._away is not None:
            self._premises.require_mine()
        return self._driver.ask(what)

    @names_descriptors
    def detach(
        self,
        train: Batches | None = None,
        valid: Batches | None = None,
        *,
        epochs: int | None = None,
    ) -> HandedOver:
        """Hand the run over to a process of its own, which goes on when this kernel ends: from this step, to
        the same bits. The call returns when the process trains. A training in the background stops at its
        next step first.

        The process runs on this machine until the last epoch is over. `Artifacts(directory)` shows it,
        `notebook-learner ctl DIR status|pause|resume|stop` steers it, and its output is in the directory's
        `detached.log`. After a stop, SIGTERM or an error, the process saves exactly where it stands, and
        ends. After a pause it waits. If the process is killed, its last checkpoint stays; the first one is
        the step that it began with.

        Meanwhile this learner does not train. `take_back()` stops the process, and this learner goes on from
        there. In a new kernel, use `.resume(take_back=True)` on the builder.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> model = torch.nn.Linear(3, 2)
        >>> builder = LearnerBuilder("runs/overnight").loss(F.mse_loss).num_epochs(2).renderer("silent")
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, 2))] * 5
        >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches)
        >>> _ = learner.step(3)
        >>> learner.detach()  # doctest: +ELLIPSIS
        goes on in process ... from epoch 1, train, step 3 of 5; learner.take_back() takes it back
        >>> learner.take_back()  # doctest: +ELLIPSIS
        taken back from process ...
        >>> learner.fit() is model, learner.status
        (True, 'finished')

        Model, optimizer, data, steps and metrics are pickled. Classes and functions of cells are pickled by
        value, which needs the extra `devices`. Modules are imported as their files are now.

        Args:
            train: the training loader, as `fit` takes it; by default the one in use.
            valid: the validation loader, likewise.
            epochs: train this number of epochs from here, as in `fit`.

        Raises:
            ConfigurationError: a part of the learner cannot be sent to another process.
            DetachError: the process failed before it trained; the error has its traceback. The learner stands
                where it stood, and can go on.
        """
        from .hand_over import hand_over  # it loads what packs and starts a process, which only detach needs

        return hand_over(self, train, valid, epochs)

    @names_descriptors
    def take_back(self) -> RunTakenBack:
        """Stop the process of `detach()` at its next step, and go on from exactly there.

        If the process has finished meanwhile, the learner is finished. If the process failed or was killed,
        the learner stands at the last checkpoint, and the result says what happened.

        Raises:
            StateError: the run was not handed over.
            Paused: the user interrupted the wait. The process stops all the same; call `take_back()` again.
        """
        from .hand_over import take_back

        return self._drive(lambda: take_back(self))

"""A Learner's verbs about going on without its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from ..errors import names_descriptors
from ..run.control import Request
from ..run.step_reports import HandedOver, RunTakenBack
from .core import LearnerCore

T = TypeVar("T")


class DetachVerbs(LearnerCore):
    """Verbs that every Learner has; a class of their own only because a file has one subject."""

    _away: Any = None
    """The process that the run was handed over to."""

    def _ask(self, what: Request) -> bool:
        """Of whoever drives, if anybody does here: a process of the run's own is asked otherwise."""
        if self._away is not None:
            self._premises.require_mine()
        return self._driver.ask(what)

    @names_descriptors
    def detach(
        self,
        train: Iterable[Any] | None = None,
        valid: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
    ) -> HandedOver:
        """Hand the run over to a process of its own, which outlives this kernel: from this very step, to the
        same bits. Returns once it trains there. A training in the background stops at its next step for it.

        The process runs on this machine until the last epoch is over. `Artifacts(directory)` shows it,
        `notebook-learner ctl DIR status|pause|resume|stop` steers it, and what it prints is in the
        directory's `detached.log`. Stopped, or told to end (SIGTERM), it saves exactly where it stands, and
        ends; so it does after an error. Paused it waits. Of a process that is killed the last checkpoint is
        left, which is at least the one that it began with.

        This learner trains no more meanwhile; `take_back()` goes on with it where the process stands. In a
        new kernel that is `.resume(take_back=True)` on the builder.

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

        Model, optimizer, data, steps and metrics travel by pickle, classes and functions of cells by value
        (the extra `devices` brings what does that). Modules are imported as their files are now.

        Args:
            train: the training loader, as `fit` takes it; by default the one in use.
            valid: the validation loader, likewise.
            epochs: train so many epochs from here, as in `fit`.

        Raises:
            ConfigurationError: something of the learner cannot be sent to another process.
            DetachError: the process failed before it trained; with its traceback. The learner stands where
                it stood, and can train on.
        """
        from .hand_over import hand_over  # with what packs and starts: for whoever leaves

        return hand_over(self, train, valid, epochs)

    @names_descriptors
    def take_back(self) -> RunTakenBack:
        """Have the process that `detach()` handed the run to stop at its next step, and stand exactly there.

        Where it has finished meanwhile, the learner is finished. Where it failed, or was killed, the
        learner stands at the last checkpoint, and the answer says what had happened.

        Raises:
            StateError: the run was not handed over.
            Paused: somebody interrupted the wait. The process stops all the same; call it again.
        """
        from .hand_over import take_back

        return self._drive(lambda: take_back(self))

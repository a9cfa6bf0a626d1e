"""`learner.devices`: the processes of a training on several devices, and how to start them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NoReturn

from ..errors import StateError, names_descriptors
from ..ranks.rank_table import RankInfo, RankTable, one_device
from .core import LearnerCore
from .display import why_built


class Devices(Sequence[RankInfo]):
    """The processes that train, as a table: rank, host, device, process, whether it is alive, its step, its
    own speed, and its memory. With one device the table has one row. The processes are asked once, when the
    table is first read.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> from notebook_learner import LearnerBuilder
    >>> model = torch.nn.Linear(3, 2)
    >>> builder = LearnerBuilder("unused").loss(F.mse_loss).renderer("silent")
    >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> [(each.rank, each.device, each.alive) for each in learner.devices]
    [(0, 'cpu', True)]
    """

    def __init__(self, learner: LearnerCore) -> None:
        self._learner = learner

    def restart(self) -> None:
        """Start the other ranks again, after one of them died. `fit()` goes on from where the learner stands.

        Raises:
            StateError: the learner has one device, and trains in this process.
        """
        ranks = self._learner._replica.ranks
        if ranks is None:
            raise StateError(
                "devices.restart() starts the processes of other devices anew, and this learner has one "
                "device; fit() goes on from where it stands"
            )
        self._learner._drive(ranks.restart)

    @cached_property
    def _table(self) -> RankTable:
        replica = self._learner._replica
        return one_device(replica) if replica.ranks is None else replica.ranks.table()

    @names_descriptors
    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as a tuple's own: by number or slice
        return self._table[index]

    @names_descriptors
    def __len__(self) -> int:
        return len(self._table)

    @names_descriptors
    def __iter__(self) -> Iterator[RankInfo]:
        return iter(self._table)

    @names_descriptors
    def __repr__(self) -> str:
        return repr(self._table)

    def __call__(self, *given: Any, **named: Any) -> NoReturn:
        raise TypeError(why_built("devices"))

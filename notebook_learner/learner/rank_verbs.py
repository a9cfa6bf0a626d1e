"""A Learner's verbs about several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import StateError, names_descriptors
from ..run.driver import Driver
from ..run.replica import Replica
from ..step.update import Update

T = TypeVar("T")


class OnRanks:
    """Verbs that every Learner has; a class of their own only because a file has one subject."""

    _replica: Replica
    _driver: Driver

    def _drive(self, work: Callable[[], T]) -> T:
        raise NotImplementedError

    def _at_hand(self) -> Update:
        """Model and optimizer for somebody who looks: whole, where a run stands between two steps."""
        ranks = self._replica.ranks
        if ranks is not None and self._driver.inside:
            ranks.look()
        return self._replica.loop.update

    def _on_rank(self, rank: int) -> Any:
        """Where another rank is asked."""
        ranks = self._replica.ranks
        world = 1 if ranks is None else ranks.world
        if not isinstance(rank, int) or not 0 < rank < world:
            known = "there is one device, rank 0" if ranks is None else f"the last one is {world - 1}"
            raise StateError(f"there is no rank {rank!r:.60}; {known}")
        return ranks

    @property
    @names_descriptors
    def fleet(self) -> Any:
        """The processes of a training on several devices: rank, host, device, process, whether it is alive,
        how far it is, how fast it is by itself, and its memory. Shown as a table; one row where there is
        one device."""
        from ..ranks.rank_table import one_device

        ranks = self._replica.ranks
        return one_device(self._replica) if ranks is None else ranks.table()

    def ranks(self) -> Any:
        """The same as a panel shows it: seen from outside, without waiting for any of them. None where there
        is one device."""
        ranks = self._replica.ranks
        return () if ranks is None else ranks.seen()

    def restart(self) -> None:
        """Start the other ranks anew, after one of them died, from where the learner stands. `fit()` goes on
        from there.

        Raises:
            StateError: there are none; a learner with one device trains in this process.
        """
        ranks = self._replica.ranks
        if ranks is None:
            raise StateError(
                "restart() starts the processes of other devices anew, and this learner has one device; "
                "fit() goes on from where it stands"
            )
        self._drive(ranks.restart)

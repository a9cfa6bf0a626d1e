"""Engines of a cluster that the user has started, on this machine or on others."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ..cluster import Attached
from ..errors import StateError
from .channel import Doors
from .engines import Engines
from .process_settings import versions
from .rendezvous import OpenRendezvous, own_address_towards

_ANSWER = 60.0
"""Seconds in which an engine has to describe its machine. A machine may be busy."""
_RANK = "notebook_learner.worker.rank:begin_in_engine"
"""The code that an engine runs. It is in a higher layer, so it is named here and not imported."""
_AGAIN = 5.0
"""Seconds after which this process repeats a question to an engine that has not answered."""
_NEEDED = ("notebook_learner", "torch", "cloudpickle", "psutil")


class EngineTold(NamedTuple):
    """An engine's description of its machine."""

    host: str
    address: str
    """One of its addresses. Its host name may resolve to a loopback address, so that is not enough."""
    python: str
    torch: str | None
    missing: tuple[str, ...]
    """The packages that a rank needs and that are not installed there."""


class AttachedEngines(Engines):
    """Ranks 1 and up are engines of the user's cluster. They go on running when the learner is gone."""

    are_here = False

    def __init__(self, where: Attached) -> None:
        super().__init__()
        self._where = where
        self.meeting: Doors | None = None  # type: ignore[assignment]  # until its address is known
        try:
            self._client = _connected(where)
            self._ids = self._chosen()
            self._told = self._ask()
            address = where.address or self._own_address()
            self.meeting = Doors(address, len(self._ids))
            self._opened = OpenRendezvous(address)
            self.place = self._opened.place
        except BaseException:
            self.stop()
            raise

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine connect to this process, as its rank."""
        assert self.meeting is not None
        own = socket.gethostname()
        beside = Counter([own, *(each.host for each in self._told)])
        taken = torch.device(self._where.here).index or 0  # by this process
        free: defaultdict[str, Iterator[int]] = defaultdict(count)
        free[own] = (number for number in count() if number != taken)
        each = zip(self._ids, devices, self._told, strict=True)
        for rank, (engine, device, told) in enumerate(each, start=1):
            number = next(free[told.host]) if device.type == "cuda" else None
            arguments = (tuple(self.meeting.door(rank)), rank, beside[told.host])
            self._begun.append(
                self._client[engine].apply_async(_begin, list(sys.path), number, _RANK, arguments)
            )

    def end(self, rank: int, pid: int) -> None:
        """End one engine at once, through its nanny: the nanny answers even if the engine does not."""
        engine = self._ids[rank - 1]
        _given_up.add((_key_of(self._where), engine))
        with suppress(Exception):
            self._client.send_signal(signal.SIGKILL, targets=engine, block=False)

    def are_watched(self) -> bool:
        """The user's cluster watches them."""
        return True

    def stop(self) -> None:
        """Disconnect from the engines, but do not end them: they are the user's."""
        if self.meeting is not None:
            self.meeting.close()
        super().stop()

    def _own_address(self) -> str:
        """This process's address for the engines of other machines, if there are any."""
        own = socket.gethostname()
        others = [each.address for each in self._told if each.host != own]
        found = [own_address_towards(each) for each in others or [each.address for each in self._told]]
        return next((each for each in found if not each.startswith("127.") and each != "::1"), found[0])

    def _chosen(self) -> list[int]:
        """The engines' ids in the order of ranks: the ones that the user chose, or the first ones."""
        where = self._where
        there = sorted(each for each in self._client.ids if (_key_of(where), each) not in _given_up)
        found = [*where.chosen] if where.chosen is not None else there[: where.count]
        if len(found) < where.count or not {*found} <= {*there}:
            wanted = f"engines {found}" if where.chosen is not None else f"{where.count} of them"
            raise StateError(
                f"{where.named}: the cluster has engines {there}, and the learner trains on {wanted}: "
                "start more, cluster.start_engines_sync(n=...), and call learner.devices.restart(); or build "
                "the learner again"
            )
        return found

    def _ask(self) -> list[EngineTold]:
        """Ask each engine to describe its machine.

        Raises:
            StateError: an engine does not answer, or its machine has other versions than this one.
        """
        found, wrong = [], []
        for engine, answer in self._answers().items():
            if answer is None:
                wrong.append(
                    f"engine {engine} has not answered within {_ANSWER:.0f} s: it hangs, or runs %px"
                )
            elif not answer.successful():
                wrong.append(f"engine {engine} has failed: {answer.exception()}")
            else:
                found.append(EngineTold(*answer.get()))
                differences = ", ".join(_differences(found[-1]))
                wrong += [f"engine {engine} on {found[-1].host} {differences}"] if differences else []
        if wrong:
            raise StateError(
                f"{self._where.named}: {'; '.join(wrong)}. The engines need the packages of this process, in "
                "the same versions"
            )
        return found

    def _answers(self) -> dict[int, Any]:
        """The answers by engine; None if the engine has not answered. The controller lists an engine from its
        first heartbeat on. A question that arrives before the engine listens is lost (ipyparallel 9.2), so
        this process asks again."""
        tell, path = _of_no_module(_tell), list(sys.path)
        answers: dict[int, Any] = dict.fromkeys(self._ids)
        asked: list[tuple[int, Any]] = []
        until = time.monotonic() + _ANSWER
        again = 0.0
        while None in answers.values() and time.monotonic() < until:
            if time.monotonic() > again:
                asked += [
                    (each, self._client[each].apply_async(tell, path, _NEEDED))
                    for each in self._ids
                    if answers[each] is None
                ]
                again = time.monotonic() + _AGAIN
            time.sleep(0.02)
            answers.update({engine: answer for engine, answer in asked if answer.ready()})
        return answers


_given_up: set[tuple[str, int]] = set()
"""Engines that were ordered to end: their cluster, and their number in it. No later engine gets this number.
While an engine's machine cannot be reached, the signal waits in the controller. It would then end the engine
in a later training."""


def _key_of(where: Attached) -> str:
    """The key of one controller: its address and its secrets, which are new each time it starts."""
    names = ("interface", "registration", "key", "curve_serverkey")
    return " ".join(str(where.connection.get(name)) for name in names)


def _differences(there: EngineTold) -> Iterator[str]:
    """The differences in packages and versions that keep an engine from being a rank."""
    python, torch_here = versions()
    if there.missing:
        yield f"has no {', no '.join(there.missing)}"
    if there.python != python:
        yield f"runs Python {there.python} (here {python})"
    if there.torch not in (None, torch_here):
        yield f"has torch {there.torch} (here {torch_here})"


def _connected(where: Attached) -> Any:
    """A client that only the learner uses: another thread may be using the user's client."""
    try:
        with _without_warning("Message signing is disabled"):  # CurveZMQ does that
            return import_module("ipyparallel").Client(where.connection)
    except OSError as error:  # includes the builtin TimeoutError, which ipyparallel raises
        raise StateError(
            f"{where.named}: the cluster's controller does not answer ({error}). Start the cluster again, "
            "and build the learner with it"
        ) from error


@contextmanager
def _without_warning(said: str) -> Iterator[None]:
    log = import_module("traitlets.log").get_logger()

    def passes(record: logging.LogRecord) -> bool:
        return said not in record.getMessage()

    log.addFilter(passes)
    try:
        yield
    finally:
        log.removeFilter(passes)


def _of_no_module(function: Any) -> Any:
    """A copy of a function that an engine can run even if it cannot import this module."""
    copy = FunctionType(function.__code__, {}, function.__name__)
    copy.__module__ = "__main__"
    return copy


def _tell(path: Sequence[str], needed: Sequence[str]) -> tuple[str, str, str, str | None, tuple[str, ...]]:
    """Return the fields of `EngineTold`. This runs in the engine, which may not have this package."""
    import os
    import socket
    import sys
    from importlib import metadata, util

    sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
    missing = tuple(each for each in needed if util.find_spec(each) is None)
    address, torch_version = "127.0.0.1", None
    if "psutil" not in missing:
        import psutil

        cards = [each for card in psutil.net_if_addrs().values() for each in card]
        known = [each.address for each in cards if each.family == socket.AF_INET]
        address = next((each for each in known if not each.startswith("127.")), address)
    if "torch" not in missing:
        torch_version = metadata.version("torch").partition("+")[0]
    return socket.gethostname(), address, ".".join(map(str, sys.version_info[:2])), torch_version, missing


def _begin(path: Sequence[str], number: int | None, entry: str, arguments: tuple[object, ...]) -> int:
    """Follow rank 0, in the engine, with the notebook's module path as far as these folders exist there."""
    import os
    import sys
    from importlib import import_module

    if number is not None and "NOTEBOOK_LEARNER_SEES" not in os.environ:
        # The engine sees no other device: code that asks for all devices makes no context on another rank's.
        # Set it only once: an engine that is attached again keeps its device, and a launcher may have given
        # each engine its own.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if "," in visible or not visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
        os.environ["NOTEBOOK_LEARNER_SEES"] = str(number)
    sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
    module, _, function = entry.partition(":")
    return getattr(import_module(module), function)(*arguments)  # type: ignore[no-any-return]

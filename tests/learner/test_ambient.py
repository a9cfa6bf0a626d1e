"""A step that is broken off inside `no_grad` or `autocast` leaves neither of them behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from driver_support import Bench, assert_ended_like, bench, by_hand, disturb
from torch import Tensor

from notebook_learner.run import modes

SETTERS = {
    "_set_grad_enabled",
    "set_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_cache_enabled",
    "autocast_increment_nesting",
    "autocast_decrement_nesting",
}
"""What torch's context managers call, on their way in and on their way out."""


class BreaksOff:
    """Two interrupts right after the n-th call of a setter in one step."""

    def __init__(self, b: Bench, number: int) -> None:
        b.trouble.where = (1, "train", 4)
        self.here = b.trouble.here
        self.left = number
        self.after = ""

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "c_return" or argument.__name__ not in SETTERS or not self.here():
            return
        if frame.f_code.co_filename == modes.__file__:  # asks at the begin of a block, which comes with time
            return
        self.left -= 1
        if self.left < 0 and not self.after:
            self.after = argument.__name__
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)


def ambient() -> tuple[Any, ...]:
    torch.autocast_increment_nesting()
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
    )


@pytest.fixture(autouse=True)
def ambient_as_before() -> Iterator[None]:
    before = ambient()
    yield
    torch.set_grad_enabled(before[0])
    torch.set_autocast_enabled("cpu", before[1])


def broken_off_everywhere(
    folder: Path, configure: Callable[[Any], Any], check: Callable[[Bench], None]
) -> set[str]:
    """Break one step off after each setter in turn; where it was. Every run is checked at its end."""
    places = set()
    for number in count():
        b = bench(folder / str(number), configure=configure)
        breaks_off, before = BreaksOff(b, number), ambient()
        sys.setprofile(breaks_off)
        try:
            b.learner.fit()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert ambient() == before, breaks_off.after
        if not breaks_off.after:
            return places
        places.add(breaks_off.after)
        if b.learner.status != "finished":
            disturb()
            b.learner.fit()
        check(b)
    raise AssertionError("count() does not end")


def test_gradients_are_recorded_again(tmp_path: Path) -> None:
    places = broken_off_everywhere(tmp_path, lambda builder: None, lambda b: assert_ended_like(b, by_hand()))

    assert places == {"_set_grad_enabled"}


def half(builder: Any) -> None:
    builder.precision("bf16")


@lru_cache
def undisturbed() -> dict[str, Tensor]:
    with TemporaryDirectory() as folder:
        b = bench(Path(folder), configure=half)
        b.learner.fit()
        return b.learner.model.state_dict()


def test_autocast_ends_and_its_copies_of_the_weights_are_dropped(tmp_path: Path) -> None:
    def ends_alike(b: Bench) -> None:
        torch.testing.assert_close(b.learner.model.state_dict(), undisturbed(), rtol=0, atol=0)

    assert broken_off_everywhere(tmp_path, half, ends_alike) == SETTERS


def test_what_a_failing_step_left_set_is_put_back_too(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.trouble.place = "forward"
    b.trouble.broken = True

    def leaves_it_set() -> None:
        if b.trouble.hits("forward"):
            torch.set_grad_enabled(False)

    b.trouble.calls["forward"] = leaves_it_set
    with pytest.raises(RuntimeError, match="in the forward"):
        b.learner.fit()

    assert torch.is_grad_enabled()
    b.trouble.fix()
    b.learner.fit()
    assert_ended_like(b, by_hand())

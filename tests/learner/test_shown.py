"""A learner and the renderer that shows it: news so far, news of a training cell, and a bundle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driver_support import Bench, Tape, assert_equals, bench, by_hand, trained_by_hand
from driver_support import loaders as data

from notebook_learner.data.rng import host_rng_kept
from notebook_learner.errors import BusyError
from notebook_learner.event import Event, MetricBlock, Rewound, RunOpened, StatusChanged


class Page(Tape):
    """A display that keeps what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.served = 0
        self.learner: Any = None

    def handle(self, event: Event, /) -> None:
        self.events.append(event)

    def attach(self, learner: Any, /) -> None:
        self.learner = learner
        self.calls.append("attach")

    def show(self) -> None:
        self.calls.append("show")

    @contextmanager
    def blocking(self) -> Iterator[Callable[[], None]]:
        self.calls.append("blocking")
        try:
            yield self.serve
        finally:
            self.calls.append("over")

    def serve(self) -> None:
        self.served += 1

    def bundle(self) -> dict[str, Any]:
        return {"text/html": "a view"}

    def freeze(self) -> None:
        self.calls.append("freeze")


def shown(folder: Path) -> tuple[Bench, Page]:
    page = Page()
    b = bench(folder, configure=lambda builder: builder.renderer(page))
    return b, page


def test_a_renderer_that_is_a_display_is_given_the_learner_and_told_when_a_cell_trains(
    tmp_path: Path,
) -> None:
    b, page = shown(tmp_path)
    assert page.learner is b.learner
    b.learner.step(2)
    assert page.calls == ["attach", "blocking", "over"]
    b.learner.fit()
    assert page.calls[3:] == ["show", "blocking", "over"]
    assert [type(event) for event in page.events].count(RunOpened) == 1
    b.learner.tools.freeze()
    assert page.calls[-1] == "freeze"


def test_an_error_ends_the_blocking_too(tmp_path: Path) -> None:
    b, page = shown(tmp_path)
    with pytest.raises(ValueError):
        b.learner.rewind(to=(9, 9))
    assert page.calls == ["attach", "blocking", "over"]


def test_whoever_waits_for_the_background_serves_the_display(tmp_path: Path) -> None:
    """A cell that waits keeps the kernel from hearing its pages, as one that trains does."""
    b, page = shown(tmp_path)
    go_on = threading.Event()

    def hold() -> None:
        assert go_on.wait(30)

    b.trouble.calls["forward"] = hold

    def release() -> None:
        page.served += 1
        if page.served == 3:
            go_on.set()

    page.serve = release  # type: ignore[method-assign]
    b.learner.start()
    b.learner.wait()
    assert page.served >= 3
    assert page.calls[-2:] == ["blocking", "over"]
    assert_equals(b.learner, by_hand().starts[3])


def test_as_a_cells_last_line_it_is_its_line_and_the_displays_view(tmp_path: Path) -> None:
    b, _ = shown(tmp_path)
    bundle = b.learner._repr_mimebundle_()
    assert bundle == {"text/plain": repr(b.learner), "text/html": "a view"}
    plain = bench(tmp_path / "plain").learner
    assert plain._repr_mimebundle_() == {"text/plain": repr(plain)}, "outside a notebook it is one line"


def test_one_who_comes_later_is_told_all_that_was_measured(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(5)
    late, early = Tape(), b.tape
    b.learner._tell(late)
    kinds = [type(event) for event in late.events]
    assert kinds == [RunOpened, Rewound, StatusChanged]
    rewound = late.events[1]
    assert isinstance(rewound, Rewound)
    told = [block for past in rewound.record for block in past.blocks]
    seen = [event for event in early.events if isinstance(event, MetricBlock)]
    assert sum(block.count for block in told) == sum(block.count for block in seen) == 5
    assert (rewound.epoch, rewound.split, rewound.step) == (1, "train", 5)


def test_more_epochs_or_fewer_are_trained_as_if_asked_for_at_first(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()
    b.learner.num_epochs = 3
    assert b.learner.status == "paused"
    b.learner.fit()
    with host_rng_kept():
        run = trained_by_hand(data(), 3)
    assert_equals(b.learner, run.starts[4])

    fewer = bench(tmp_path / "fewer")
    fewer.learner.step(2)
    fewer.learner.num_epochs = 1
    fewer.learner.fit()
    assert_equals(fewer.learner, by_hand().starts[2])


def test_epochs_that_are_over_cannot_be_taken_from_the_plan(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()
    with pytest.raises(ValueError, match="num_epochs = 1: the learner stands at"):
        b.learner.num_epochs = 1
    assert b.learner.num_epochs == 2
    assert b.learner.status == "finished"


def test_a_step_may_not_change_the_plan_it_is_part_of(tmp_path: Path) -> None:
    b = bench(tmp_path)

    def change() -> None:
        b.learner.num_epochs = 5

    b.trouble.calls["forward"] = change
    with pytest.raises(BusyError, match="training thread"):
        b.learner.step()

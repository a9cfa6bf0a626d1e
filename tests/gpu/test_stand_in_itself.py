"""What the stand-in tells that CUDA does not: data that are read too early, streams without order, where
waits are.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
from cuda_support import DEVICE
from torch import Tensor

alone = pytest.mark.skipif(not stand_in.loaded(), reason="about the stand-in, and there is a GPU")
HERE = Path(__file__).parent


def on(*size: int) -> Tensor:
    return torch.ones(size, device=DEVICE)


@pytest.fixture
def side() -> Iterator[Any]:
    """A stream that has finished when the next test begins."""
    torch.cuda.synchronize()
    yield torch.cuda.Stream()
    torch.cuda.synchronize()


# Too early --------------------------------------------------------------------------------------------------


@alone
def test_memory_that_nobody_wrote_is_not_zero() -> None:
    assert torch.empty(3, device=DEVICE).isnan().all()
    assert torch.empty(3, dtype=torch.int64, device=DEVICE).eq(-1).all()


ENOUGH: dict[str, Callable[[Any], Any]] = {
    "item": lambda event: on(1).item(),
    "a copy": lambda event: on(1).cpu(),
    "the stream": lambda event: torch.cuda.current_stream().synchronize(),
    "the event": lambda event: event.synchronize(),
    "the device": lambda event: torch.cuda.synchronize(),
    "numbers of what is not zero": lambda event: on(1).nonzero(),
}


@alone
@pytest.mark.parametrize("name", ENOUGH)
def test_what_a_copy_under_way_brings_is_not_there_before_a_wait(name: str) -> None:
    copy, event = on(5).to("cpu", non_blocking=True), torch.cuda.current_stream().record_event()
    assert copy.isnan().all() and stand_in.under_way() >= 1
    ENOUGH[name](event)
    assert copy.eq(1).all() and stand_in.under_way() == 0


@alone
def test_a_wait_for_another_stream_is_not_enough(side: Any) -> None:
    copy, before = on(5).to("cpu", non_blocking=True), torch.cuda.Event()
    side.synchronize()
    before.synchronize()
    assert copy.isnan().all()
    side.wait_stream(torch.cuda.current_stream())
    side.synchronize()
    assert copy.eq(1).all(), "that stream has waited for this one"


@alone
def test_an_event_is_not_done_when_it_is_first_asked_for() -> None:
    copy, event = on(5).to("cpu", non_blocking=True), torch.cuda.current_stream().record_event()
    assert not event.query() and copy.isnan().all()
    assert event.query() and copy.eq(1).all()


def pinned(*size: int, **named: Any) -> Tensor:
    return torch.zeros(size, pin_memory=True, **named)


UNDER_WAY: dict[str, Callable[[], Tensor]] = {
    "a row": lambda: pinned(5).copy_(on(5), non_blocking=True),
    "of another dtype": lambda: pinned(5, dtype=torch.float64).copy_(on(5), non_blocking=True),
    "columns of a device": lambda: pinned(4, 5).copy_(on(5, 4).t(), non_blocking=True),
    "columns on both sides": lambda: pinned(5, 4).t().copy_(on(5, 4).t(), non_blocking=True),
}
AT_ONCE: dict[str, Callable[[], Tensor]] = {
    "not pinned": lambda: torch.empty(5).copy_(on(5), non_blocking=True),
    "columns of the host": lambda: pinned(5, 4).t().copy_(on(4, 5), non_blocking=True),
    "not asked for": lambda: pinned(5).copy_(on(5)),
}


@alone
@pytest.mark.parametrize("name", UNDER_WAY)
def test_a_copy_into_pinned_memory_without_gaps_is_under_way(name: str) -> None:
    copy = UNDER_WAY[name]()
    assert copy.isnan().all()
    torch.cuda.synchronize()
    assert copy.eq(1).all()


@alone
@pytest.mark.parametrize("name", AT_ONCE)
def test_any_other_copy_is_there_at_once(name: str) -> None:
    assert AT_ONCE[name]().eq(1).all()


@alone
def test_a_pinned_source_that_is_written_to_too_early_is_a_fault() -> None:
    source = torch.ones(5).pin_memory()
    there = source.to(DEVICE, non_blocking=True)
    torch.cuda.synchronize()
    source.fill_(2)
    there.copy_(source, non_blocking=True)
    source.fill_(3)
    assert stand_in.faults() == []
    torch.cuda.synchronize()
    (fault,) = stand_in.faults()
    assert "pinned memory was written to while a copy of it to the device was under way" in fault


# Streams without order --------------------------------------------------------------------------------------


@alone
def test_what_another_stream_has_made_cannot_be_read_without_an_event(side: Any) -> None:
    made = on(5)
    with pytest.raises(RuntimeError, match="no event lies between"), torch.cuda.stream(side):
        made + 1
    assert len(stand_in.faults()) == 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert float((made + 1).sum()) == 10


@alone
def test_what_another_stream_reads_cannot_be_written_to_without_an_event(side: Any) -> None:
    made = on(5)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        copy = made.to("cpu", non_blocking=True)
    assert made.sum() > 0, "two may read"
    with pytest.raises(RuntimeError, match="may still be reading"):
        made.add_(1)
    assert len(stand_in.faults()) == 1
    side.synchronize()
    made.add_(1)
    assert copy.eq(1).all()


@alone
@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_another_stream_uses_goes_back_only_with_record_stream(recorded: bool, side: Any) -> None:
    made = on(5)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        made + 1
        if recorded:
            made.record_stream(side)
    del made
    assert ["record_stream is missing" in each for each in stand_in.faults()] == [True] * (not recorded)


# Where waits are --------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "copy to the host": lambda x: x.cpu(),
    "copy to the device": lambda x: torch.ones(3).to(DEVICE),
    "kernel": lambda x: x.nonzero(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "device": lambda x: torch.cuda.synchronize(),
    "event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "copy of memory that is not pinned": lambda x: torch.ones(3).to(DEVICE, non_blocking=True),
    "under way": lambda x: x.to("cpu", non_blocking=True),
}


@alone
def test_every_kind_has_a_case() -> None:
    assert tuple(KINDS) == stand_in.KINDS


@alone
@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_is_told_with_its_kind_and_its_place(kind: str) -> None:
    x = on(3)
    with stand_in.listening() as told:
        KINDS[kind](x)
    (one,) = told
    line = KINDS[kind].__code__.co_firstlineno
    assert one.kind == kind and one.waits == (kind != "under way")
    assert one.place(f"{HERE.name}/").startswith(f"{Path(__file__).name}:{line} <lambda>")


@alone
def test_a_wait_in_the_backward_pass_is_found_where_it_was_called() -> None:
    class Waiting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            assert gradient.sum().item() == 3
            return gradient * 2

    x = on(3).requires_grad_()
    with stand_in.listening() as told:
        Waiting.apply(x).sum().backward()
    (one,) = told
    assert one.kind == "item" and " backward" in one.place(f"{HERE.name}/")


# Building it ------------------------------------------------------------------------------------------------

BUILD = "import sys; sys.path.insert(0, sys.argv[1]); import stand_in; print(stand_in.built())"


def building(folder: Path, script: str, count: int = 1) -> list[subprocess.CompletedProcess[str]]:
    """Processes that build it at the same time, with a script in the compiler's place."""
    program = folder / "c++"
    program.write_text(f"#!/bin/sh\necho called >> {folder}/calls\n{script}\n")
    program.chmod(0o755)
    environment = {**os.environ, "CXX": str(program), "XDG_CACHE_HOME": str(folder / "cache")}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(HERE)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    ended = [(each, each.communicate()) for each in running]
    return [subprocess.CompletedProcess(each.args, each.returncode, *said) for each, said in ended]


def test_it_is_built_once_by_processes_that_need_it_at_the_same_time(tmp_path: Path) -> None:
    script = 'while [ "$1" != -o ]; do shift; done; echo library > "$2"'
    done = building(tmp_path, script, count=2) + building(tmp_path, script)
    (library,) = {each.stdout.strip() for each in done}
    assert Path(library).read_text() == "library\n" and torch.__version__ in library
    assert (tmp_path / "calls").read_text() == "called\n"
    assert {each.name for each in Path(library).parent.iterdir()} == {Path(library).name, "lock"}


def test_what_the_compiler_says_is_told_and_the_next_run_tries_again(tmp_path: Path) -> None:
    for _ in range(2):
        (done,) = building(tmp_path, "echo 'stand_in.cpp:1: wrong' >&2; exit 1")
        assert done.returncode == 1 and "could not be built:\nstand_in.cpp:1: wrong" in done.stderr
    assert (tmp_path / "calls").read_text() == "called\n" * 2


def test_why_there_is_no_stand_in_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert stand_in.why_not() == "there is a GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert stand_in.why_not().startswith("this torch is built for CUDA")
    monkeypatch.delattr(torch._C, "_cuda_getDeviceCount")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert stand_in.why_not().endswith("needs a C++ compiler: sudo apt install g++")
    (tmp_path / "g++").touch(0o755)
    assert stand_in.why_not() == ""

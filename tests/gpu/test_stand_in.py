"""What the stand-in claims about CUDA (the table in stand_in.py). A GPU passes the same tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cuda_support import DEVICE, counted_waits, no_waits, room_for
from torch import Tensor, nn

MIB = 1 << 20
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def on(*size: int) -> Tensor:
    return torch.ones(size, device=DEVICE)


def pinned(*size: int) -> Tensor:
    return torch.ones(*size).pin_memory()


# Places -----------------------------------------------------------------------------------------------------

MIXED: dict[str, Callable[[], Any]] = {
    "an operand of the host": lambda: on(3) + torch.ones(3),
    "a result on the host": lambda: torch.ones(3).add_(on(3)),
    "a result without dimensions": lambda: torch.ones(()).add_(on()),
    "a matrix": lambda: on(3, 3) @ torch.ones(3, 3),
    "a layer's input": lambda: nn.Linear(3, 3).to(DEVICE)(torch.ones(2, 3)),
    "a layer's weights": lambda: nn.Linear(3, 3)(on(2, 3)),
    "rows to look up": lambda: F.embedding(torch.tensor([0, 1]), on(3, 3)),
    "rows to take": lambda: on(3, 3).index_select(0, torch.tensor([0, 1])),
    "classes": lambda: F.cross_entropy(on(2, 3), torch.tensor([0, 1])),
    "parts": lambda: torch.cat([on(3), torch.ones(3)]),
    "a mean": lambda: F.batch_norm(on(2, 3), torch.zeros(3), torch.ones(3)),
    "weights of a mean": lambda: torch.lerp(on(3), torch.ones(3), 0.5),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_tensor_of_another_place_is_an_error(name: str) -> None:
    with pytest.raises(RuntimeError, match="device"):
        MIXED[name]()


@two_devices
def test_a_tensor_of_another_device_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        on(3) + torch.ones(3, device="cuda:1")


def test_an_operand_without_dimensions_may_lie_on_the_host() -> None:
    assert (on(3) * torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert (torch.tensor(2.0) - on(3)).device == torch.device(DEVICE)
    assert torch.where(on(3) > 0, on(3), torch.tensor(0.0)).tolist() == [1, 1, 1]


def test_an_index_may_lie_on_the_host() -> None:
    assert on(3)[torch.tensor([0, 2])].device == torch.device(DEVICE)


def test_numpy_reads_no_memory_of_a_device() -> None:
    with pytest.raises(TypeError, match="cpu"):
        on(3).numpy()


def test_memory_of_a_device_cannot_be_pinned() -> None:
    assert not on(3).is_pinned() and pinned(3).is_pinned() and not torch.ones(3).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        on(3).pin_memory()


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(3, device="cuda:99")


def test_views_share_memory_and_a_clone_does_not() -> None:
    base = on(4, 4)
    base[1:3, ::2].fill_(5)
    base.t()[0].zero_()
    base.view(16)[15] = 7
    other = base.clone()
    base.unfold(0, 2, 1)[0].add_(1)
    torch.view_as_real(torch.view_as_complex(base.view(8, 2))).mul_(2)
    assert other.tolist() == [[0, 1, 1, 1], [0, 1, 5, 1], [0, 1, 5, 1], [0, 1, 1, 7]]
    assert base.tolist() == [[2, 4, 4, 4], [2, 4, 12, 4], [0, 2, 10, 2], [0, 2, 2, 14]]


def test_a_saved_tensor_comes_back_to_its_device_or_to_another() -> None:
    file = io.BytesIO()
    torch.save({"a": on(3), "b": torch.ones(2)}, file)
    file.seek(0)
    again = torch.load(file)
    assert again["a"].device == torch.device(DEVICE) and again["b"].device.type == "cpu"
    file.seek(0)
    assert torch.load(file, map_location="cpu")["a"].tolist() == [1, 1, 1]


def test_gradients_cross_between_the_places() -> None:
    leaf = torch.ones(3, requires_grad=True)
    (leaf.to(DEVICE) * on(3)).cpu().sum().backward()
    assert leaf.grad is not None and leaf.grad.device.type == "cpu" and leaf.grad.tolist() == [1, 1, 1]


# Waits ------------------------------------------------------------------------------------------------------

WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "a condition": lambda x: bool(x.sum() > 0),
    "a copy to the host": lambda x: x.cpu(),
    "a list": lambda x: x.tolist(),
    "a copy into memory of the host": lambda x: torch.empty(4, 4).copy_(x),
    "a copy into pinned memory": lambda x: pinned(4, 4).copy_(x),
    "a copy to the device": lambda x: torch.ones(3).to(DEVICE),
    "a copy of pinned memory": lambda x: pinned(3).to(DEVICE),
    "a tensor from numbers": lambda x: torch.tensor([1.0, 2.0], device=DEVICE),
    "numbers of what is not zero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 0],
    "values behind a mask": lambda x: x.masked_select(x > 0),
    "whether two are equal": lambda x: torch.equal(x, x.clone()),
    "a stream": lambda x: torch.cuda.current_stream().synchronize(),
}
SILENT: dict[str, Callable[[Tensor], Any]] = {
    "the device": lambda x: torch.cuda.synchronize(),
    "an event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "a copy into memory that is not pinned": lambda x: torch.empty(4, 4).copy_(x, non_blocking=True),
    "a copy of memory that is not pinned": lambda x: torch.ones(3).to(DEVICE, non_blocking=True),
    "a copy under way to the host": lambda x: x.to("cpu", non_blocking=True),
    "a copy under way into pinned memory": lambda x: torch.empty(4, 4, pin_memory=True).copy_(
        x, non_blocking=True
    ),
    "a copy under way to the device": lambda x: pinned(3).to(DEVICE, non_blocking=True),
    "arithmetic": lambda x: (x @ x).relu().add_(1).softmax(0).sum(),
    "a scalar of the host": lambda x: x * torch.tensor(2.0),
    "a fill": lambda x: x.fill_(3.0),
    "an index on the device": lambda x: x[torch.arange(2, device=DEVICE)],
    "a choice": lambda x: torch.where(x > 0, x, 0.0).masked_fill(x > 1, 0.0),
    "a loss": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=DEVICE)),
    "a mask that is drawn": lambda x: F.dropout(x, 0.5),
    "backward": lambda x: (x.clone().requires_grad_() * 2).sum().backward(),
    "a norm": lambda x: nn.utils.get_total_norm([x, x]),
}


@pytest.mark.parametrize("name", WAITS)
def test_sync_debug_mode_tells_of_a_wait(name: str) -> None:
    x = on(4, 4)
    with counted_waits() as waits:
        WAITS[name](x)
    assert len(waits) == 1, waits
    with no_waits(), pytest.raises(RuntimeError, match="synchronizing"):
        WAITS[name](x)


@pytest.mark.parametrize("name", SILENT)
def test_sync_debug_mode_says_nothing_of(name: str) -> None:
    x = on(4, 4)
    SILENT[name](x)  # lazy allocations may wait
    with no_waits():
        SILENT[name](x)


def test_the_mode_can_be_asked_for() -> None:
    assert torch.cuda.get_sync_debug_mode() == 0
    with no_waits():
        assert torch.cuda.get_sync_debug_mode() == 2


# Copies, streams and events ---------------------------------------------------------------------------------


def test_a_copy_to_the_host_that_does_not_wait_takes_pinned_memory_and_is_there_after_a_wait() -> None:
    there = on(1000).mul_(3)
    copy = there.to("cpu", non_blocking=True)
    assert copy.is_pinned()
    torch.cuda.synchronize()
    assert copy.eq(3).all()


def test_an_event_says_when_the_work_before_it_is_done() -> None:
    there, event = on(1000).mul_(3), torch.cuda.Event()
    assert event.query(), "not recorded yet: there is nothing to wait for"
    copy = there.to("cpu", non_blocking=True)
    event.record()
    event.synchronize()
    assert event.query() and copy.eq(3).all()


def test_a_stream_that_waits_for_another_sees_its_work() -> None:
    side, made = torch.cuda.Stream(), on(1000).mul_(3)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        copy = (made * 2).to("cpu", non_blocking=True)
        made.record_stream(side)
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
    side.synchronize()
    assert copy.eq(6).all() and side.query()


def test_an_event_orders_two_streams() -> None:
    side, made = torch.cuda.Stream(), on(1000)
    event = torch.cuda.current_stream().record_event()
    with torch.cuda.stream(side):
        side.wait_event(event)
        made.mul_(3)
        done = torch.cuda.Event()
        done.record()
    done.wait()
    assert float(made.sum()) == 3000


def test_events_measure_time() -> None:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    on(1000).mul_(3)
    last.record()
    last.synchronize()
    assert first.elapsed_time(last) >= 0


@two_devices
def test_each_device_has_its_own_stream_and_a_copy_between_them_is_in_order() -> None:
    there = on(1000).mul_(3).to("cuda:1", non_blocking=True)
    assert there.device.index == 1 and float(there.sum()) == 3000
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1 == torch.cuda.current_stream().device.index
        assert torch.ones(1, device="cuda").device.index == 1
    assert torch.cuda.current_device() == 0


# Generators -------------------------------------------------------------------------------------------------


def test_a_device_draws_from_its_own_generator() -> None:
    host, states = torch.get_rng_state(), torch.cuda.get_rng_state_all()
    torch.rand(3, device=DEVICE)
    F.dropout(on(100), 0.5)
    assert torch.equal(torch.get_rng_state(), host)
    moved = [not torch.equal(*each) for each in zip(states, torch.cuda.get_rng_state_all(), strict=True)]
    assert moved == [True] + [False] * (torch.cuda.device_count() - 1)
    torch.rand(3)
    assert not torch.equal(torch.get_rng_state(), host)


def test_a_seed_or_a_state_gives_the_same_draws_again() -> None:
    def draw() -> list[Any]:
        kept = F.dropout(on(50), 0.5)
        return [torch.randn(3, device=DEVICE), kept, torch.randperm(9, device=DEVICE), on(5).uniform_()]

    torch.manual_seed(5)
    first = draw()
    state = torch.cuda.get_rng_state(DEVICE)
    second = draw()
    torch.cuda.set_rng_state(state, DEVICE)
    again = draw()
    torch.manual_seed(5)
    assert all(map(torch.equal, first, draw())) and all(map(torch.equal, second, again))
    assert not any(map(torch.equal, first, second))


def test_a_state_is_a_seed_and_an_offset() -> None:
    torch.manual_seed(5)
    generator = torch.cuda.default_generators[0]
    assert len(generator.get_state()) == 16 and generator.initial_seed() == 5 and generator.get_offset() == 0
    torch.rand(3, device=DEVICE)
    assert generator.get_offset() > 0 and generator.get_offset() % 4 == 0


def test_a_generator_of_another_place_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        on(3).uniform_(generator=torch.Generator())
    own = torch.Generator(DEVICE).manual_seed(1)
    assert torch.equal(
        torch.rand(3, device=DEVICE, generator=own),
        torch.rand(3, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(1)),
    )


# Memory -----------------------------------------------------------------------------------------------------


def test_memory_is_counted_in_blocks_until_it_is_given_back() -> None:
    before = torch.cuda.memory_allocated()
    one, other = torch.empty(1, device=DEVICE), torch.empty(129, device=DEVICE)
    assert torch.cuda.memory_allocated() == before + 512 + 1024
    view = other[:1]
    del one, other
    assert torch.cuda.memory_allocated() == before + 1024, "a view holds all of its memory"
    del view
    assert torch.cuda.memory_allocated() == before


def test_the_peak_is_kept_until_it_is_reset() -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.empty(MIB, device=DEVICE)
    assert torch.cuda.max_memory_allocated() == before + 4 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total


def test_an_allocation_beyond_the_limit_is_torchs_error_and_the_next_one_works() -> None:
    before, refused = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["num_ooms"]
    with room_for(100 * MIB):
        kept = torch.empty(60 * MIB, dtype=torch.uint8, device=DEVICE)
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 60\.00 MiB"):
            torch.empty(60 * MIB, dtype=torch.uint8, device=DEVICE)
        assert torch.cuda.memory_allocated() == before + 60 * MIB
        del kept
        torch.empty(60 * MIB, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_stats()["num_ooms"] == refused + 1


# Graphs -----------------------------------------------------------------------------------------------------


def test_a_recording_computes_nothing_until_it_is_played() -> None:
    weight, given, graph = on(3), on(3), torch.cuda.CUDAGraph()
    torch.manual_seed(5)
    state = torch.cuda.get_rng_state()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        weight.add_(given)
        noise = torch.rand(3, device=DEVICE)
    assert not torch.cuda.is_current_stream_capturing()
    assert weight.tolist() == [1, 1, 1] and torch.equal(torch.cuda.get_rng_state(), state)
    played = []
    for _ in range(2):
        graph.replay()
        played.append(noise.clone())
    assert weight.tolist() == [3, 3, 3]
    given.fill_(10)
    graph.replay()
    assert weight.tolist() == [13, 13, 13]
    torch.manual_seed(5)
    graph.replay()
    assert torch.equal(noise, played[0]) and not torch.equal(*played)


def test_a_wait_cannot_be_recorded() -> None:
    x = on(3)
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):  # which mends torch's generator after a failure
        x + 1
    assert float(x.sum()) == 3

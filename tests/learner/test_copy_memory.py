"""Memory of copies is used again, once no reference to it is left, and given back in the end."""

import gc
import threading

import pytest
import torch
import torch.nn.functional as F
from builder_support import quiet
from exactness import differences
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from notebook_learner.state import device_copies, snapshot
from notebook_learner.state.device_copies import CopyMemory

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool]


@pytest.fixture(autouse=True)
def every_tensor_is_large(monkeypatch):
    monkeypatch.setattr(device_copies, "LARGE", 1)
    monkeypatch.setattr(snapshot, "LARGE", 1)


@pytest.fixture
def memory():
    kept = CopyMemory()
    kept.open()
    return kept


def values(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "strided",
    [
        lambda x: x.reshape(2, 3, 4, 5),
        lambda x: x.reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda x: x.reshape(12, 10).t(),
        lambda x: x[::3],
        lambda x: x[:1].expand(6, 5),
        lambda x: x[0],
        lambda x: x[:0],
    ],
    ids=["contiguous", "channels last", "transposed", "with gaps", "expanded", "a number", "empty"],
)
def test_a_copy_has_type_shape_strides_and_values_of_the_original(memory, dtype, strided):
    live = strided(torch.arange(120).to(torch.float32).to(dtype))
    for _ in range(2):
        copy = memory.like(live)
        copy.copy_(live)
        plain = torch.empty_like(live)
        assert (copy.dtype, copy.shape, copy.stride()) == (plain.dtype, plain.shape, plain.stride())
        assert values(copy) == values(live)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "special",
    [
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8),
        lambda: nn.Parameter(torch.ones(4)),
        lambda: torch.ones(0),
    ],
    ids=["quantized", "of another class", "empty"],
)
def test_what_is_more_than_bytes_has_memory_of_its_own(memory, special):
    live = special()
    copy = memory.like(live)
    assert (type(copy), copy.layout, copy.dtype) == (type(torch.empty_like(live)), live.layout, live.dtype)
    del copy
    assert memory.nbytes == 0


def test_the_memory_of_a_dropped_copy_is_that_of_the_next(memory):
    live = torch.zeros(100)
    copy = memory.like(live)
    place = copy.data_ptr()
    del copy
    assert memory.nbytes == 400
    again = memory.like(live.view(10, 10))
    assert again.data_ptr() == place and again.shape == (10, 10)
    assert memory.nbytes == 0


@pytest.mark.parametrize(
    "part",
    [
        lambda copy: copy[:3],
        lambda copy: copy.detach(),
        lambda copy: copy.numpy(),
        lambda copy: copy.untyped_storage(),
        lambda copy: memoryview(copy.numpy()),
        lambda copy: nn.Parameter(copy),
    ],
    ids=["a slice", "detached", "an array", "its storage", "its bytes", "a parameter"],
)
def test_what_shares_a_copys_memory_keeps_it(memory, part):
    copy = memory.like(torch.zeros(100)).fill_(7)
    place, held = copy.data_ptr(), part(copy)
    del copy
    gc.collect()
    other = memory.like(torch.zeros(100)).fill_(1)
    assert other.data_ptr() != place
    del held
    assert memory.nbytes == 400


def test_a_graph_that_needs_a_copy_keeps_it(memory):
    copy = memory.like(torch.zeros(4)).fill_(3)
    weight = torch.ones(4, requires_grad=True)
    product = (weight * copy).sum()
    del copy
    memory.like(torch.zeros(4)).fill_(9)
    product.backward()
    assert weight.grad.tolist() == [3, 3, 3, 3]


def test_a_copy_may_be_dropped_by_another_thread(memory):
    copies = [memory.like(torch.zeros(50)) for _ in range(20)]
    thread = threading.Thread(target=copies.clear)
    thread.start()
    thread.join()
    assert memory.nbytes == 20 * 200


def test_no_more_is_kept_than_the_last_copy_took(memory):
    """A way back drops many keyframes at once."""
    copies = []
    for _ in range(10):
        memory.open()
        copies.append([memory.like(torch.zeros(size)) for size in (50, 50, 25)])
    copies.clear()
    assert memory.nbytes == 500


def test_nothing_is_kept_after_the_end_nor_what_comes_back_later(memory):
    early, late = memory.like(torch.zeros(50)), memory.like(torch.zeros(50))
    del early
    assert memory.nbytes == 200
    memory.close()
    assert memory.nbytes == 0
    late.fill_(2)
    assert late.sum() == 100
    del late
    assert memory.nbytes == 0


def test_what_no_copy_wanted_for_long_is_let_go_of(memory, monkeypatch):
    memory.like(torch.zeros(50))
    memory.close_if_unused()
    assert memory.nbytes == 200
    monkeypatch.setattr(device_copies, "LONG", 0.0)
    memory.close_if_unused()
    assert memory.nbytes == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([8, 16, 24]), st.integers(0, 5)), max_size=60))
def test_no_two_copies_ever_share_memory(program):
    memory = CopyMemory()
    memory.open()
    held = {}
    for number, (size, slot) in enumerate(program):
        held[slot] = (number, memory.like(torch.zeros(size)).fill_(number))
        for expected, copy in held.values():
            assert (copy == expected).all()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))


def batches():
    source = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=source), torch.randint(0, 3, (8,), generator=source))] * 12


def test_checkpoints_of_a_run_use_one_memory_and_say_what_copies_of_their_own_say(tmp_path, monkeypatch):
    """The one that is being copied while another is written has memory of its own."""
    returned = []
    take_back = CopyMemory._take_back

    def noted(memory, piece):
        returned.append(piece)
        take_back(memory, piece)

    def trained(directory):
        model = net()
        builder = quiet(directory).loss(F.cross_entropy).num_epochs(3).seed(3).keyframes(memory=1)
        builder = builder.with_file_checkpointer().autosave(every=1)
        learner = builder.build(model, torch.optim.Adam(model.parameters(), lr=0.01), None, batches())
        learner.fit()
        return learner

    monkeypatch.setattr(CopyMemory, "_take_back", noted)
    learner = trained(tmp_path / "a")
    of_one = 4 + 8  # parameters, and two moments of each
    assert len(returned) >= 30 * of_one
    # How many depends on how far the writer is behind: what comes back twice at once is kept once.
    assert len(set(map(id, returned))) <= len(returned) / 3, "most of it was used before"
    assert learner._replica.snapshots._memory.nbytes == 0
    monkeypatch.setattr(CopyMemory, "like", lambda memory, live: torch.empty_like(live))
    other = trained(tmp_path / "b")
    for which in ("latest", 2):
        learner.restore(which)
        other.restore(which)
        one, two = learner.capture(), other.capture()
        assert list(differences(dict(one.parts), dict(two.parts))) == []

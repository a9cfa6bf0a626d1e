from __future__ import annotations

import weakref

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from notebook_learner.store.tensors import (
    DTYPES,
    are_apart,
    are_direct,
    bytes_of,
    dtype_name,
    identity_of,
    is_plain,
    laid_out,
    memories_of,
    nbytes_of,
    on_host,
    ordering_of,
)

SHAPES = st.lists(st.integers(0, 4), max_size=4)


def counted(shape: list[int]) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def test_every_dtype_of_torch_has_a_name_that_leads_back_to_it() -> None:
    assert set(DTYPES.values()) == {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in DTYPES.values():
        assert DTYPES[dtype_name(dtype)] is dtype


@given(
    SHAPES, st.sampled_from([torch.uint8, torch.bfloat16, torch.int64, torch.complex128, torch.float8_e5m2])
)
def test_the_bytes_are_as_many_as_are_said(shape: list[int], dtype: torch.dtype) -> None:
    assert bytes_of(torch.zeros(shape, dtype=dtype)).nbytes == nbytes_of(dtype, shape)


def test_the_bytes_are_those_that_numpy_and_safetensors_have() -> None:
    for tensor in (torch.randn(3, 4), torch.tensor([True, False]), torch.tensor(7, dtype=torch.int16)):
        assert bytes_of(tensor) == tensor.numpy().tobytes()
    half = torch.randn(5).bfloat16()
    assert safetensors.torch.save({"x": half}).endswith(bytes(bytes_of(half)))


def test_the_bytes_are_the_tensors_own_memory() -> None:
    tensor = torch.zeros(2, requires_grad=True)
    bytes_of(tensor)[3] = 0x3F
    assert tensor.tolist() == [0.5, 0.0]


ALL_KINDS = [
    torch.randn(3, 4),
    torch.tensor(7),
    torch.empty(0, 3),
    torch.tensor([True, False]),
    torch.randn(5).bfloat16(),
    torch.zeros(3, dtype=torch.float8_e4m3fn),
    torch.randn(2, dtype=torch.complex64),
    torch.randn(6)[2:4],
    torch.nn.Parameter(torch.ones(2)),
]


def test_the_bytes_of_many_tensors_are_those_of_each() -> None:
    for memory, tensor in zip(memories_of(ALL_KINDS), ALL_KINDS, strict=True):
        assert memory == bytes_of(tensor) and memory.format == "B" and memory.ndim == 1
    assert memories_of([]) == []
    with pytest.raises(RuntimeError, match="ZeroTensor"):  # it has no memory, and is no reason to crash
        memories_of([torch._efficientzerotensor(3)])


def test_the_bytes_of_many_tensors_are_their_own_memory_and_keep_it() -> None:
    tensors = [torch.zeros(1000), torch.ones(3)]
    gone = weakref.ref(tensors[1])
    memory = memories_of(tensors)[0]
    memory[3] = 0x3F
    assert tensors[0][0] == 0.5
    del tensors
    assert gone() is not None and memory[3] == 0x3F
    del memory
    assert gone() is None


NOT_DIRECT = {
    "another device": lambda: torch.ones(2, device="meta"),
    "transposed": lambda: torch.ones(2, 3).t(),
    "strided": lambda: torch.ones(6)[::2],
    "sparse": lambda: torch.eye(2).to_sparse(),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "negated": lambda: torch.ones(2, dtype=torch.complex64).conj().imag[:1],
    "quantized": lambda: torch._make_per_tensor_quantized_tensor(torch.ones(2, dtype=torch.int8), 1.0, 0),
}


@pytest.mark.parametrize("what", NOT_DIRECT)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_one_tensor_that_is_not_its_memory_alone_is_found_among_many(what: str) -> None:
    usual = [torch.ones(2), torch.ones((), dtype=torch.int64), torch.ones(3).bfloat16()]
    assert are_direct(usual) and are_direct([])
    assert not are_direct([*usual, NOT_DIRECT[what](), *usual])


def test_tensors_are_apart_where_none_begins_where_another_does() -> None:
    one, two = torch.ones(4), torch.ones(4)
    assert are_apart([one, two, one[1:]])
    assert not are_apart([one, two, one.view(2, 2)])
    assert not are_apart([one, torch.empty(0)])


def test_on_host_is_the_tensor_itself_where_nothing_need_be_done() -> None:
    tensor = torch.ones(2, 3)
    assert on_host(tensor).data_ptr() == tensor.data_ptr()
    assert on_host(tensor.requires_grad_()).requires_grad is False


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.conj(),
        lambda t: t.conj().imag,
        lambda t: t.t(),
        lambda t: t[::2],
        lambda t: t[0].expand(3, 4),
    ],
    ids=["conjugated", "negated", "transposed", "strided", "expanded"],
)
def test_on_host_makes_every_view_plain_memory_of_the_same_values(view: object) -> None:
    assert callable(view)
    tensor = view(torch.randn(4, 4, dtype=torch.complex64))
    plain = on_host(tensor)
    assert torch.equal(plain, tensor)
    assert plain.is_contiguous()
    assert not plain.is_conj()
    assert not plain.is_neg()
    assert bytes_of(plain) == tensor.resolve_conj().resolve_neg().numpy().tobytes()


@given(SHAPES, st.randoms(use_true_random=False))
def test_any_order_of_dimensions_is_found_and_made_again(shape: list[int], chance: object) -> None:
    order = list(range(len(shape)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    tensor = counted(shape).permute(order)
    found = ordering_of(tensor)
    if found is None:
        assert tensor.is_contiguous()
    else:
        again = laid_out(on_host(tensor), found)
        assert torch.equal(again, tensor)
        assert again.permute(found).is_contiguous()
        assert ordering_of(again) == found


def test_channels_last_comes_back_as_that() -> None:
    tensor = counted([2, 3, 4, 5]).to(memory_format=torch.channels_last)
    order = ordering_of(tensor)
    assert order == [0, 2, 3, 1]
    again = laid_out(on_host(tensor), order)
    assert again.is_contiguous(memory_format=torch.channels_last)
    assert again.stride() == tensor.stride()


def test_a_view_with_gaps_or_overlap_has_no_order() -> None:
    assert ordering_of(counted([4, 4])[:, ::2]) is None
    assert ordering_of(counted([3]).expand(4, 3)) is None
    assert ordering_of(counted([4, 4])) is None


def test_the_same_memory_seen_in_the_same_way_is_the_same() -> None:
    base = torch.arange(6.0)
    assert identity_of(base) == identity_of(base.detach()) == identity_of(base.view(6))
    others = [base[1:], base.view(2, 3), base.view(torch.int32), base[::2], base.clone()]
    identities = [identity_of(tensor) for tensor in (base, *others)]
    assert len(set(identities)) == len(identities)


def test_views_that_conjugate_or_negate_are_not_the_tensor_itself() -> None:
    tensor = torch.ones(2, dtype=torch.complex64)
    assert identity_of(tensor) != identity_of(tensor.conj())
    assert identity_of(tensor.imag) != identity_of(tensor.conj().imag)


def test_empty_tensors_are_each_their_own() -> None:
    one, other = torch.empty(0), torch.empty(0)
    assert identity_of(one) != identity_of(other)
    assert identity_of(one) == identity_of(one)


# torch means to drop quantized tensors some day, and says so when one is made
@pytest.mark.filterwarnings("ignore:.*[qQ]uantize")
def test_only_strided_tensors_with_memory_are_plain() -> None:
    assert is_plain(torch.ones(2))
    assert is_plain(torch.ones(2, 2).t())
    assert not is_plain(torch.eye(2).to_sparse())
    assert not is_plain(torch.ones(2, device="meta"))
    assert not is_plain(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))

"""What every exact recorder promises, as one class of tests to inherit:

    class TestMine(RecorderContract):
        @pytest.fixture
        def recorder(self):
            return MyRecorder()

The format is used as a run uses it: written with `durable.write_new`, read with `durable.opened`.
"""

from __future__ import annotations

import inspect
import math
import random
import struct
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from notebook_learner.checkpoint.recorder import Decoded, Encoded, Recorder
from notebook_learner.errors import CheckpointError, DamagedError
from notebook_learner.store import durable
from notebook_learner.store.tensors import DTYPES, bytes_of, on_host, ordering_of

PLAIN_DTYPES = sorted(name for name in DTYPES if not name.startswith(("q", "cfloat", "cdouble", "chalf")))
OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)

# --------------------------------------------------------------------------------- writing and reading


@contextmanager
def file_of(recorder: Recorder, data: bytes | Encoded) -> Iterator[durable.Reader]:
    """An open file of these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"state-1.{recorder.suffix}"
        if isinstance(data, bytes):
            path.write_bytes(data)
        else:
            durable.write_new(path, data.pieces, data.size)
        with durable.opened(path) as file:
            yield file


def whole(encoded: Encoded) -> bytes:
    return b"".join(bytes(memoryview(piece).cast("B")) for piece in encoded.pieces)


def decoded(recorder: Recorder, data: bytes | Encoded) -> Decoded:
    with file_of(recorder, data) as file:
        return recorder.decode(file)


def through(recorder: Recorder, value: Any) -> Any:
    """A value, written and read again."""
    encoded = recorder.encode(value)
    found = decoded(recorder, encoded)
    assert found.digest == encoded.digest
    return found.value


# --------------------------------------------------------------------------------------- what is equal


def require_same(found: Any, wanted: Any, place: str = "value") -> None:
    """Equal in type, in order and in every bit."""
    assert type(found) is type(wanted), f"{place}: {type(found)} in place of {type(wanted)}"
    if isinstance(wanted, Tensor):
        _require_same_tensor(found, wanted, place)
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert found.dtype == wanted.dtype.newbyteorder("="), place
        assert found.shape == wanted.shape, place
        assert found.tobytes() == wanted.astype(found.dtype).tobytes(), place
    elif isinstance(wanted, dict):
        assert len(found) == len(wanted), place
        for (one, item), (key, other) in zip(found.items(), wanted.items(), strict=True):
            require_same(one, key, f"a key of {place}")
            require_same(item, other, f"{place}[{key!r}]")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), place
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            require_same(one, other, f"{place}[{index}]")
    elif isinstance(wanted, float):
        same = (
            math.isnan(found) if math.isnan(wanted) else struct.pack("d", found) == struct.pack("d", wanted)
        )
        assert same, f"{place}: {found} in place of {wanted}"
    elif isinstance(wanted, complex):
        require_same(found.real, wanted.real, place)
        require_same(found.imag, wanted.imag, place)
    else:
        assert found == wanted, f"{place}: {found!r} in place of {wanted!r}"


def _require_same_tensor(found: Tensor, wanted: Tensor, place: str) -> None:
    assert (found.dtype, found.shape, found.layout) == (wanted.dtype, wanted.shape, wanted.layout), place
    assert found.device.type == "cpu", place
    if type(wanted) is nn.Parameter:
        assert found.requires_grad == wanted.requires_grad, place
        found, wanted = found.data, wanted.data
    if wanted.layout == torch.sparse_coo:
        assert found.is_coalesced() == wanted.is_coalesced(), place
        require_same(found._indices(), wanted._indices(), place)
        require_same(found._values(), wanted._values(), place)
    elif wanted.layout != torch.strided:
        require_same(found.to_dense(), wanted.to_dense(), place)
        require_same(found.values(), wanted.values(), place)
    else:
        assert ordering_of(found) == ordering_of(wanted), place
        assert bytes_of(on_host(found)) == bytes_of(on_host(wanted)), place


# --------------------------------------------------------------------------------------- what is saved


def random_tensor(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """A tensor of random bits."""
    made = torch.empty(shape, dtype=dtype)
    data = bytes_of(made)
    bits = random.Random(seed).randbytes(data.nbytes)
    data[:] = bytes(bit & 1 for bit in bits) if dtype == torch.bool else bits
    return made


def tensors_of_every_kind() -> dict[str, Tensor]:
    base = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    numbers = torch.view_as_complex(base[..., :2].contiguous())
    return {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty in a middle dimension": torch.empty(3, 0, 2, dtype=torch.int64),
        "one": torch.ones(1, 1, 1),
        "transposed": base.permute(3, 1, 0, 2),
        "channels last": base.to(memory_format=torch.channels_last),
        "strided": base[:, ::2],
        "offset": base[1:],
        "expanded": torch.arange(3).expand(4, 3),
        "conjugated": numbers.conj(),
        "negated": numbers.conj().imag,
        "nan": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64),
        "parameter": nn.Parameter(base[0, 0].clone()),
        "frozen": nn.Parameter(base[0, 1].clone(), requires_grad=False),
        "requires grad, and is detached": base.clone(),
        "coo": torch.sparse_coo_tensor(
            [[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3), check_invariants=True
        ),
        "coalesced": base[0, 0].relu().to_sparse(),
        "long": torch.arange(100_000, dtype=torch.float32),
        "zeros": torch.zeros(1_000_000),
    }


def nested() -> dict[Any, Any]:
    return {
        "state": {0: {"step": torch.tensor(3.0)}, 1: {}},
        (1, "a"): {(): None, ((0,),): True},
        "$tensor": {"$dict": 1, "": 2, "a/b": 3, "a.b": 4, "..": 5, "ü\0\ud800": 6},
        "numbers": [
            0,
            -1,
            2**63,
            -(2**63),
            2**64,
            -(2**200),
            0.1,
            -0.0,
            math.nan,
            math.inf,
            -math.inf,
            5e-324,
        ],
        "kinds": (1j, b"\0\xff", {1, 2}, frozenset({3}), torch.Size([2, 3]), torch.bfloat16, "text"),
        "devices": [torch.device("cpu"), torch.device("cuda", 1)],
        "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
        "counter": Counter({3: 2, 1: 1}),
        "arrays": [
            np.arange(6, dtype=">i4").reshape(2, 3),
            np.zeros((0, 2)),
            np.float32(1.5),
            np.bool_(True),
        ],
        "empty": [[], (), {}, "", b"", set(), [[[]]]],
    }


def optimizer_state(name: str) -> dict[str, Any]:
    """The state of an optimizer after three real steps."""
    torch.manual_seed(0)
    kind = getattr(torch.optim, name)
    if name == "SparseAdam":
        module: nn.Module = nn.Embedding(5, 3, sparse=True)
        inputs = torch.tensor([0, 2, 2])
    else:
        module, inputs = nn.Linear(3, 4, bias=name != "Muon"), torch.randn(5, 3)
    optimizer = kind(module.parameters(), lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = module(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return optimizer.state_dict()


class Halving:
    """A schedule that is an object, whose attributes are saved."""

    def __init__(self) -> None:
        self.factor = 0.5

    def __call__(self, epoch: int) -> float:
        return self.factor**epoch


_Make = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
SCHEDULERS: dict[str, _Make] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LambdaLR of an object": lambda o: lr_scheduler.LambdaLR(o, Halving()),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "CyclicLR of a function": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, scale_fn=lambda x: 0.5),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.LambdaLR(o, Halving())]
    ),
}


def scheduler_state(name: str) -> dict[str, Any]:
    """The state of a scheduler after three steps."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for loss in (1.0, 0.5, 0.7):
        optimizer.step()
        if name == "ReduceLROnPlateau":
            scheduler.step(loss)
        else:
            scheduler.step()
    return scheduler.state_dict()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=()), max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.sampled_from([torch.float32, torch.device("cpu"), np.int64(3), torch.Size([1, 2])]),
    st.builds(
        lambda dtype, shape, seed: random_tensor(DTYPES[dtype], *shape, seed=seed),
        st.sampled_from(["float32", "bfloat16", "uint8", "bool", "complex64", "float8_e8m0fnu"]),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 9),
    ),
)
KEYS = st.one_of(
    st.text(max_size=3), st.sampled_from(["$int", "$tensor", "a/b"]), st.integers(), st.tuples(st.text())
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)

# ------------------------------------------------------------------------------------------- the tests


# torch says so once, when the first complex32 tensor is made
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
class RecorderContract:
    """Inherit, and give a fixture `recorder`."""

    def test_is_a_recorder_and_says_that_it_is_exact(self, recorder: Recorder) -> None:
        assert isinstance(recorder, Recorder)
        assert recorder.exact

    def test_pieces_size_and_digest_belong_together(self, recorder: Recorder) -> None:
        encoded = recorder.encode(nested())
        data = whole(encoded)
        assert len(data) == encoded.size
        assert decoded(recorder, data).digest == encoded.digest
        assert recorder.encode({**nested(), "more": 1}).digest != encoded.digest

    @pytest.mark.parametrize("name", PLAIN_DTYPES)
    def test_a_tensor_of_every_dtype_comes_back_bit_for_bit(self, recorder: Recorder, name: str) -> None:
        dtype = DTYPES[name]
        value = [random_tensor(dtype, *shape) for shape in [(), (0,), (7,), (3, 5), (40, 60)]]
        require_same(through(recorder, value), value)

    @pytest.mark.parametrize("name", sorted(tensors_of_every_kind()))
    def test_a_tensor_of_every_kind_comes_back(self, recorder: Recorder, name: str) -> None:
        value = {name: tensors_of_every_kind()[name]}
        require_same(through(recorder, value), value)

    # torch means to drop both kinds some day, and says so whenever one is made
    @pytest.mark.filterwarnings(
        "ignore:Sparse .* is in beta", "ignore:.*[qQ]uantize", "ignore:Sparse invariant"
    )
    @pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "bsc"])
    def test_compressed_sparse_tensors_come_back(self, recorder: Recorder, kind: str) -> None:
        dense = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).relu()
        block = [(2, 3)] if kind.startswith("b") else []
        value = {"weight": getattr(dense, f"to_sparse_{kind}")(*block)}
        require_same(through(recorder, value), value)

    @pytest.mark.filterwarnings("ignore:.*[qQ]uantize")
    def test_quantized_tensors_come_back(self, recorder: Recorder) -> None:
        dense = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
        for value in (
            torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8),
            torch.quantize_per_tensor(dense, 0.1, 0, torch.qint32),
            torch.quantize_per_channel(dense, scales, zeros, 0, torch.qint8),
        ):
            found = through(recorder, {"weight": value})["weight"]
            assert (found.dtype, found.qscheme()) == (value.dtype, value.qscheme())
            assert torch.equal(found.int_repr(), value.int_repr())
            assert torch.equal(found.dequantize(), value.dequantize())

    @pytest.mark.filterwarnings("ignore:.*[qQ]uantize")
    def test_what_repeats_itself_comes_back_where_a_reader_copies_it(self, recorder: Recorder) -> None:
        """However small it could be made: a reader takes no more than twice the file, copies included."""
        value = {
            "zeros": torch.zeros(100_000),
            "last": torch.zeros(8, 16, 32, 32).to(memory_format=torch.channels_last),
            "quantized": torch.quantize_per_tensor(torch.zeros(100_000), 0.1, 3, torch.quint8),
        }
        back = through(recorder, value)
        require_same(back.pop("quantized").dequantize(), value.pop("quantized").dequantize())
        require_same(back, value)

    def test_nested_state_of_every_type_comes_back(self, recorder: Recorder) -> None:
        require_same(through(recorder, nested()), nested())

    @pytest.mark.parametrize("value", [None, 3, "text", [], {}, torch.ones(2)], ids=repr)
    def test_the_value_may_be_anything(self, recorder: Recorder, value: Any) -> None:
        require_same(through(recorder, value), value)

    def test_an_integer_of_any_length_comes_back_or_is_refused(self, recorder: Recorder) -> None:
        value = {"seed": 1 << 20_000}
        try:
            found = through(recorder, value)
        except CheckpointError as error:
            assert "seed" in str(error)
        else:
            assert found == value

    def test_a_tensor_in_several_places_is_stored_once_and_stays_one(self, recorder: Recorder) -> None:
        weight = random_tensor(torch.int64, 100_000)
        once = recorder.encode({"a": weight})
        tied = {"a": weight, "b": [weight, weight.view(-1)], "c": {"d": weight.detach()}}
        encoded = recorder.encode(tied)
        assert encoded.size < once.size + 4096
        found = decoded(recorder, encoded).value
        require_same(found, tied)
        assert found["b"][0] is found["a"]
        assert found["c"]["d"] is found["a"]

    def test_tied_parameters_share_their_memory(self, recorder: Recorder) -> None:
        weight = nn.Parameter(torch.ones(3))
        found = through(recorder, {"encoder": weight, "decoder": weight})
        assert found["encoder"].data_ptr() == found["decoder"].data_ptr()

    def test_views_of_the_same_memory_that_look_different_stay_apart(self, recorder: Recorder) -> None:
        base = torch.arange(6.0)
        value = {"a": base[:4], "b": base[2:], "c": base[:4].view(2, 2), "d": base[:4].view(torch.int32)}
        require_same(through(recorder, value), value)

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_the_state_of_every_optimizer_comes_back(self, recorder: Recorder, name: str) -> None:
        value = optimizer_state(name)
        require_same(through(recorder, value), value)

    def test_the_schedulers_here_are_all_that_torch_has(self, recorder: Recorder) -> None:
        base = lr_scheduler.LRScheduler
        there = {
            name
            for name, kind in vars(lr_scheduler).items()
            if inspect.isclass(kind) and issubclass(kind, base) and not name.endswith("LRScheduler")
        }
        assert there <= set(SCHEDULERS)

    @pytest.mark.parametrize("name", sorted(SCHEDULERS))
    def test_the_state_of_every_scheduler_comes_back(self, recorder: Recorder, name: str) -> None:
        value = scheduler_state(name)
        require_same(through(recorder, value), value)

    def test_equal_values_make_equal_files(self, recorder: Recorder) -> None:
        def data() -> bytes:
            value = {"model": tensors_of_every_kind(), "optim": optimizer_state("Adam"), "more": nested()}
            return whole(recorder.encode(value))

        assert data() == data()

    def test_saving_changes_nothing(self, recorder: Recorder) -> None:
        value = tensors_of_every_kind()
        through(recorder, value)
        require_same(value, tensors_of_every_kind())

    @pytest.mark.parametrize(
        "value",
        [print, object(), torch.empty(2, device="meta"), np.array(["text"]), range(3)],
        ids=["function", "object", "meta tensor", "array of text", "range"],
    )
    def test_what_cannot_be_held_is_refused_by_its_place(self, recorder: Recorder, value: Any) -> None:
        with pytest.raises(CheckpointError) as caught:
            recorder.encode({"groups": [{"lr": 0.1}, {"lr": value}]}, "optim")
        assert "optim['groups'][1]['lr']" in str(caught.value)

    def test_a_value_that_contains_itself_is_refused(self, recorder: Recorder) -> None:
        value: list[Any] = []
        value.append(value)
        with pytest.raises(CheckpointError, match="contain itself"):
            recorder.encode(value)

    def test_the_deepest_value_that_is_taken_comes_back(self, recorder: Recorder) -> None:
        value: Any = "leaf"
        for _ in range(33):
            value = [({0: value},)]
        require_same(through(recorder, value), value)

    def test_the_outline_has_the_structure_and_no_memory(self, recorder: Recorder) -> None:
        value = {
            "weight": random_tensor(torch.bfloat16, 200, 30),
            "odd": random_tensor(torch.complex32, 3),
            "scalar": torch.tensor(1),
            "nested": {"lr": 0.1, "betas": (0.9, 0.999), 3: [nn.Parameter(torch.ones(2)), None]},
            "array": np.ones((2, 3)),
            "sparse": torch.eye(3).to_sparse(),
        }
        encoded = recorder.encode(value)
        with file_of(recorder, encoded) as file:
            found = recorder.outline(file)
        assert found.digest == encoded.digest
        outline = found.value
        assert list(outline) == list(value)
        for name in ("weight", "odd", "scalar", "sparse"):
            tensor = outline[name]
            assert (tensor.device.type, tensor.dtype) == ("meta", value[name].dtype)
            assert tensor.shape == value[name].shape
        assert outline["array"].shape == (2, 3)
        assert outline["nested"]["lr"] == 0.1
        assert outline["nested"]["betas"] == (0.9, 0.999)
        parameter, nothing = outline["nested"][3]
        assert type(parameter) is nn.Parameter
        assert parameter.is_meta
        assert nothing is None

    def test_a_file_that_was_cut_anywhere_is_refused(self, recorder: Recorder) -> None:
        data = whole(recorder.encode(small()))
        places = {*range(0, len(data), max(1, len(data) // 200)), *range(len(data) - 20, len(data))}
        for place in sorted(places):
            with pytest.raises(DamagedError) as caught:
                decoded(recorder, data[:place])
            assert f"state-1.{recorder.suffix}" in str(caught.value)

    def test_no_flipped_bit_changes_a_value_unnoticed(self, recorder: Recorder) -> None:
        wanted = small()
        data = whole(recorder.encode(wanted))
        chance = random.Random(0)
        noticed = 0
        for _ in range(300):
            place = chance.randrange(len(data) * 8)
            flipped = bytearray(data)
            flipped[place // 8] ^= 1 << place % 8
            try:
                found = decoded(recorder, bytes(flipped)).value
            except DamagedError:
                noticed += 1
            else:
                require_same(found, wanted)
        assert noticed > 200

    def test_an_outline_of_a_damaged_file_is_an_outline_or_an_error_of_ours(self, recorder: Recorder) -> None:
        data = whole(recorder.encode(small()))
        chance = random.Random(1)
        outlines = 0
        for _ in range(100):
            damaged = bytearray(data[: chance.randrange(1, len(data) + 1)])
            damaged[chance.randrange(len(damaged))] ^= chance.randrange(1, 256)
            try:
                with file_of(recorder, bytes(damaged)) as file:
                    recorder.outline(file)
                outlines += 1
            except DamagedError:
                pass
        assert outlines < 100

    @pytest.mark.parametrize(
        "more", [b"\0", b"\n", b"garbage" * 1000, None], ids=["zero", "line", "much", "itself"]
    )
    def test_a_file_with_something_after_its_end_is_refused(
        self, recorder: Recorder, more: bytes | None
    ) -> None:
        data = whole(recorder.encode(small()))
        with pytest.raises(DamagedError):
            decoded(recorder, data + (data if more is None else more))

    @pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 5000, b"{}", b"PK\x03\x04", b"\x80\x05."], ids=repr)
    def test_a_file_of_another_kind_is_refused(self, recorder: Recorder, data: bytes) -> None:
        with pytest.raises(DamagedError):
            decoded(recorder, data)

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(value=TREES)
    def test_any_nested_value_comes_back(self, recorder: Recorder, value: Any) -> None:
        require_same(through(recorder, value), value)


class NoCopyContract:
    """For formats that store tensors as they are."""

    def test_the_memory_of_contiguous_tensors_is_not_copied(self, recorder: Recorder) -> None:
        tensors = [random_tensor(torch.float32, 3000), random_tensor(torch.bfloat16, 64, 64)]
        pieces = [np.frombuffer(piece, np.uint8) for piece in recorder.encode(tensors).pieces if len(piece)]
        addresses = {piece.ctypes.data for piece in pieces}
        assert {tensor.data_ptr() for tensor in tensors} <= addresses


def small() -> dict[str, Any]:
    """A value of every part of a format, in a small file."""
    return {
        "weight": random_tensor(torch.float32, 20, 13),
        "tied": (weight := random_tensor(torch.float16, 2, 2)),
        "again": weight,
        "odd": random_tensor(torch.complex32, 5),
        "zeros": torch.zeros(3000),
        "step": torch.tensor(3),
        "empty": torch.empty(0),
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1, 2], "foreach": None}],
        "text": "a text",
    }

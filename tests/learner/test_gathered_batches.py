"""Data in memory is gathered a batch at a time. Only the time that takes differs from torch's loader."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exactness import differences, everything
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data._utils import collate
from torch.utils.data._utils import pin_memory as pinning

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.data.cursor import Cursor
from notebook_learner.data.rank_share import Share
from notebook_learner.data.sampling import END

# What is compared ------------------------------------------------------------------------------------


def generators() -> list[Any]:
    numpy: Any = np.random.get_state(legacy=False)
    state = numpy["state"]
    return [random.getstate(), state["pos"], state["key"].tobytes(), torch.get_rng_state().tolist()]


def facts(value: Any) -> Any:
    """Everything that a step could see of a batch."""
    if not isinstance(value, Tensor):
        return type(value), [facts(each) for each in value]
    bits = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).tolist()
    layout = value.stride(), value.storage_offset(), value.untyped_storage().nbytes()
    kind = value.requires_grad, value.is_conj(), value.is_neg(), value.is_pinned(), type(value.grad_fn)
    return type(value), value.dtype, value.shape, layout, kind, bits


def walked(start: Callable[[], Callable[[], Any]]) -> list[Any]:
    """Each batch and the generators after it, and how the epoch ends."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    found: list[Any] = []
    try:
        following = start()
        while (batch := following()) is not END:
            found += [facts(batch), generators()]
    except Exception as error:
        found.append((type(error), str(error)))
    return [*found, generators()]


def of_torch(loader: DataLoader[Any]) -> list[Any]:
    def start() -> Callable[[], Any]:
        iterator = iter(loader)
        return lambda: next(iterator, END)

    return walked(start)


def of_ours(loader: DataLoader[Any], seed: int | None = None) -> list[Any]:
    def start() -> Callable[[], Any]:
        cursor = Cursor(loader, seed)
        cursor.begin(epoch=1)
        return cursor.fetch

    return walked(start)


@contextmanager
def stacks() -> Iterator[list[int]]:
    """How many times samples that were looked up one by one are stacked."""
    real, found = torch.stack, list[int]()

    def stack(tensors: Any, dim: int = 0, *, out: Any = None) -> Tensor:
        if tensors[0].ndim or tensors[0].dtype != torch.int64:  # a label alone may also be an index
            found.append(len(tensors))
        return real(tensors, dim, out=out)

    torch.stack = stack
    try:
        yield found
    finally:
        torch.stack = real


# Which data ------------------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
SHAPES = [(), (1,), (3,), (0,), (2, 3), (1, 1, 1), (2, 2, 3), (3, 1, 2), (2, 1, 2, 2)]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "every second row": lambda x: torch.cat([x, x])[::2],
    "other strides": lambda x: x.t().contiguous().t() if x.ndim == 2 else x,
    "one row, expanded": lambda x: x[:1].expand_as(x),
    "columns of a wider one": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.ndim > 1 else x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "conjugated": lambda x: x.conj(),
    "negative": lambda x: torch.complex(x, x).conj().imag if x.dtype == torch.float32 else x,
    "with a gradient": lambda x: x.detach().requires_grad_() if x.dtype.is_floating_point else x,
    "a parameter": lambda x: nn.Parameter(x, requires_grad=False),
}


def tensor(draw: Any, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    source = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    bits = torch.randint(0, 256, (rows, *shape, dtype.itemsize), dtype=torch.uint8, generator=source)
    plain = bits[..., 0] > 127 if dtype == torch.bool else bits.view(dtype)[..., 0]  # any NaN, too
    plain = plain.contiguous()
    return VIEWS[draw(st.sampled_from([*VIEWS, "as it is", "as it is"]))](plain)


KINDS = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=3)


def dataset(draw: Any, kinds: list[Any], depth: int = 0, mixed: bool = True) -> Any:
    match draw(st.sampled_from(["tensors", "tensors", "part", "split", "joined"][: 2 if depth > 2 else 5])):
        case "tensors":
            rows = draw(st.integers(1, 12))
            return TensorDataset(*(tensor(draw, rows, *kind) for kind in kinds))
        case "part":
            inner = dataset(draw, kinds, depth + 1, mixed)
            size = len(inner)
            picked = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=10))
            as_what = draw(st.sampled_from([list, tuple, np.array, torch.tensor, lambda _: range(size)]))
            return Subset(inner, as_what(picked))
        case "split":
            inner = dataset(draw, kinds, depth + 1, mixed)
            if len(inner) == 1:  # torch would take the lengths [1, 0] as fractions
                return inner
            first = draw(st.integers(1, len(inner)))
            return random_split(inner, [first, len(inner) - first], torch.Generator().manual_seed(2))[0]
    others = draw(st.sampled_from([kinds, kinds, kinds[::-1], [*kinds, kinds[0]]])) if mixed else kinds
    return ConcatDataset([dataset(draw, kinds, depth + 1, mixed), dataset(draw, others, depth + 1, mixed)])


class Counting:
    """A sampler of one's own: backwards, with integers of several kinds, and maybe out of range."""

    def __init__(self, numbers: list[Any], kind: Callable[[int], Any]) -> None:
        self.numbers, self.kind = numbers, kind

    def __iter__(self) -> Iterator[Any]:
        return map(self.kind, self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def loading(draw: Any, data: Any) -> Callable[[], DataLoader[Any]]:
    """A function that makes the same loader each time, with its own generators at their beginning."""
    size = len(data)
    common = {"batch_size": draw(st.integers(1, 7)), "drop_last": draw(st.booleans())}
    picked = draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=12))
    beyond = [*picked, draw(st.sampled_from([size, -size - 1, 2**70]))]
    kinds = [int, np.int64, np.int32, torch.tensor, bool, np.array, lambda i: bool(i) if i % 2 else i]
    kind = draw(st.sampled_from(kinds))
    sampler = draw(
        st.sampled_from(
            [
                lambda: {"shuffle": True},
                lambda: {"shuffle": True},
                lambda: {"shuffle": False},
                lambda: {"shuffle": True, "generator": generator()},
                lambda: {"sampler": RandomSampler(data, replacement=True, num_samples=9)},
                lambda: {"sampler": RandomSampler(data, num_samples=size + 5, generator=generator())},
                lambda: {"sampler": WeightedRandomSampler([1.0] * size, 8)},
                lambda: {"sampler": SubsetRandomSampler(picked)},
                lambda: {"sampler": SubsetRandomSampler(torch.tensor(picked))},  # type: ignore[arg-type]
                lambda: {"sampler": SubsetRandomSampler(np.array(picked))},  # type: ignore[arg-type]
                lambda: {"sampler": Counting(picked, kind)},
                lambda: {"sampler": Counting(beyond, int)},
                lambda: {"batch_sampler": [picked, tuple(picked), picked[:1]]},
                lambda: {"batch_sampler": [picked, [], picked]},
                lambda: {"batch_sampler": [picked, torch.tensor(picked), {*picked}, iter(picked)]},
                lambda: {"batch_sampler": BatchSampler(RandomSampler(data), 3, True)},
            ]
        )
    )

    def make() -> DataLoader[Any]:
        chosen: dict[str, Any] = sampler()
        return (
            DataLoader(data, **chosen) if "batch_sampler" in chosen else DataLoader(data, **common, **chosen)
        )

    return make


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_batches_order_draws_and_errors_are_those_of_torchs_loader(data: Any) -> None:
    draw = data.draw
    make = loading(draw, dataset(draw, draw(KINDS)))
    assert of_ours(make()) == of_torch(make())


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(2, 4))
def test_the_parts_of_ranks_are_the_whole_batch(data: Any, world: int) -> None:
    samples = dataset(data.draw, data.draw(KINDS), mixed=False)
    size = data.draw(st.integers(1, 7))
    cursors = [Cursor(DataLoader(samples, size, shuffle=True), share=Share(i, world)) for i in range(world)]
    torch.manual_seed(1)
    whole = list(DataLoader(samples, size, shuffle=True))
    found: list[list[Any]] = []
    for cursor in cursors:
        torch.manual_seed(1)
        cursor.begin(epoch=1)
        found.append(list(iter(cursor.fetch_share, END)))
    for batch, *parts in zip(whole, *found, strict=True):
        for column, *of_ranks in zip(batch, *(part for part in parts if type(part) is list), strict=True):
            assert facts(torch.cat(of_ranks))[-1] == facts(column)[-1]


ODD: dict[str, tuple[Tensor, list[Any]]] = {
    "no number in a row, and a row that is not there": (torch.zeros(5, 0), [7]),
    "no row": (torch.zeros(0, 3), [0]),
    "a single number": (torch.tensor(3.0), [0]),
    "a truth value among numbers": (torch.arange(6.0), [True, 3]),
    "truth values": (torch.arange(6.0), [True, True]),
    "small numbers that torch takes for a mask": (torch.arange(6.0), [torch.tensor(1, dtype=torch.uint8)]),
    "tensors of numbers": (torch.arange(6.0), [torch.tensor([1, 2])]),
    "lists": (torch.arange(6.0), [[1, 2], [3, 4]]),
    "one from the end": (torch.arange(6.0), [0, -1]),
    "an array": (torch.arange(6.0), np.array([1, 2])),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", ODD)
def test_odd_data_and_odd_indices_are_as_torch_takes_them(name: str) -> None:
    tensor, drawn = ODD[name]
    data = TensorDataset(torch.zeros(1))
    data.tensors = (tensor,)
    loader = DataLoader(data, batch_sampler=[drawn])
    assert of_ours(loader) == of_torch(loader)


# That it is done, and that it is not -----------------------------------------------------------------


def pairs(rows: int = 40) -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, 6, generator=source), torch.randint(0, 3, (rows,), generator=source)
    )


IN_MEMORY: dict[str, Callable[[], Any]] = {
    "tensors": pairs,
    "a subset by a list": lambda: Subset(pairs(), [3, 1, 2] * 5),
    "a subset by an array": lambda: Subset(pairs(), np.arange(30)[::-1]),  # type: ignore[arg-type]
    "a subset by a tensor": lambda: Subset(pairs(), torch.arange(30)),  # type: ignore[arg-type]
    "a subset of a subset": lambda: Subset(Subset(pairs(), range(5, 30)), range(3, 20)),
    "a random split": lambda: random_split(pairs(), [30, 10], generator())[0],
    "several, joined": lambda: ConcatDataset([pairs(), Subset(pairs(), range(9))]),
    "a part of several": lambda: Subset(ConcatDataset([pairs(), pairs()]), range(70, 10, -2)),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", IN_MEMORY)
def test_no_sample_of_data_in_memory_is_looked_up_alone(name: str, seed: int | None) -> None:
    loader = DataLoader(IN_MEMORY[name](), batch_size=8, shuffle=True)
    with stacks() as found:
        assert len(of_ours(loader, seed)) > 3
    assert not found
    with stacks() as found:
        of_torch(loader)
    assert found, "the count sees what torch does"


class Noisy(TensorDataset):
    """Its samples are drawn."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.randn(6) + random.random() + float(np.random.rand()), y


class Part(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self.dataset[self.indices[index]][0] + torch.randn(6)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Plain(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index))

    def __len__(self) -> int:
        return 12


class Indices(list[int]):
    """A list that counts what is asked of it."""

    asked = 0

    def __getitem__(self, index: Any) -> Any:
        Indices.asked += 1
        return super().__getitem__(index)


def with_own_fetch() -> Any:
    data: Any = pairs()
    data.__getitems__ = lambda indices: [(data.tensors[0][i] + torch.randn(6), i) for i in indices]
    return data


def own_collate(samples: list[Any]) -> Any:
    return collate.default_collate(samples)


OTHERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "samples that are drawn": lambda: DataLoader(Noisy(*pairs().tensors), 8, shuffle=True),
    "a subset of them": lambda: DataLoader(Subset(Noisy(*pairs().tensors), range(20)), 8, shuffle=True),
    "joined with them": lambda: DataLoader(
        ConcatDataset([pairs(), Noisy(*pairs().tensors)]), 8, shuffle=True
    ),
    "a class of one's own": lambda: DataLoader(Part(pairs(), range(20)), 8, shuffle=True),
    "joined with another kind": lambda: DataLoader(ConcatDataset([pairs(), Plain()]), 1, shuffle=True),
    "a collate of one's own": lambda: DataLoader(pairs(), 8, shuffle=True, collate_fn=own_collate),
    "an object that fetches": lambda: DataLoader(with_own_fetch(), 8, shuffle=True),
    "indices of one's own": lambda: DataLoader(Subset(pairs(), Indices(range(20))), 8, shuffle=True),
    "a list of samples": lambda: DataLoader(list(pairs()), 8, shuffle=True),  # type: ignore[arg-type]
    "other strides": lambda: DataLoader(
        TensorDataset(torch.randn(20, 2, 4, 4).to(memory_format=torch.channels_last)), 8, shuffle=True
    ),
    "workers": lambda: DataLoader(pairs(), 8, shuffle=True, num_workers=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_other_data_go_torchs_way(name: str) -> None:
    torch.manual_seed(2)
    make = OTHERS[name]
    first, second = make(), make()
    if name in ("other strides",):
        second = first
    with stacks() as found:
        mine = of_ours(first)
    assert found or name == "workers"
    assert mine == of_torch(second)


def test_indices_of_ones_own_are_asked_as_often_as_torch_asks() -> None:
    Indices.asked = 0
    of_ours(OTHERS["indices of one's own"]())
    assert Indices.asked == 20


@pytest.mark.parametrize(
    ("owner", "name", "replaced"),
    [
        (TensorDataset, "__getitem__", lambda self, i: tuple(t[i] + torch.rand(()) for t in self.tensors)),
        (Dataset, "__getitems__", lambda self, many: [(self.tensors[0][i] * 2, i) for i in many]),
        (collate, "collate_tensor_fn", lambda batch, **_: torch.stack(batch) * 2),
    ],
    ids=["a look-up", "a fetch", "a collate"],
)
def test_code_of_torch_that_is_replaced_in_mid_epoch_counts_from_the_next_batch_on(
    owner: Any, name: str, replaced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(walk: Callable[[DataLoader[Any]], Callable[[], Any]]) -> list[Any]:
        torch.manual_seed(3)
        following = walk(DataLoader(pairs(), 8, shuffle=True))
        found = [facts(following())]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replaced, raising=False)
            if owner is collate:
                patch.setitem(collate.default_collate_fn_map, Tensor, replaced)
            found += [facts(following()), facts(following()), torch.get_rng_state().tolist()]
        return [*found, facts(following())]

    mine, theirs = both(fetches), both(lambda loader: iter(loader).__next__)
    assert mine == theirs
    assert mine[0] != mine[1]


def fetches(loader: DataLoader[Any]) -> Callable[[], Any]:
    cursor = Cursor(loader)
    cursor.begin(epoch=1)
    return cursor.fetch


def test_a_way_to_join_samples_that_torch_was_told_of_counts() -> None:
    data = pairs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(collate.default_collate_fn_map, tuple, lambda batch, **_: "joined")
        assert fetches(DataLoader(data, 8))() == "joined"
        patch.delitem(collate.default_collate_fn_map, tuple)
        patch.setitem(collate.default_collate_fn_map, Path, lambda batch, **_: "of no tensor")
        with stacks() as found:
            assert len(fetches(DataLoader(data, 8))()) == 2
        assert not found


CHANGES: dict[str, Callable[[Any], None]] = {
    "in place": lambda data: data.tensors[0].mul_(2),
    "other tensors": lambda data: setattr(data, "tensors", (data.tensors[1], data.tensors[0])),
    "another type": lambda data: setattr(data, "tensors", (data.tensors[0].double(), data.tensors[1])),
    "fewer rows": lambda data: data.tensors[0].resize_(9, 6),
    "a gradient": lambda data: data.tensors[0].requires_grad_(),
    "sparse": lambda data: setattr(data, "tensors", (data.tensors[0].to_sparse(),)),
    "an array": lambda data: setattr(data, "tensors", (data.tensors[0].numpy(), data.tensors[1])),
    "none": lambda data: setattr(data, "tensors", ()),
    "a list": lambda data: setattr(data, "tensors", [*data.tensors]),
    "its data": lambda data: setattr(data.tensors[0], "data", torch.ones(40, 2)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_data_that_are_changed_in_mid_epoch_count_from_the_next_batch_on(name: str) -> None:
    def both(walk: Callable[[DataLoader[Any]], Callable[[], Any]]) -> list[Any]:
        data = pairs()
        torch.manual_seed(3)
        following = walk(DataLoader(data, 8, shuffle=True))
        found: list[Any] = [facts(following())]
        CHANGES[name](data)
        for _ in range(3):
            try:
                found.append(facts(following()))
            except Exception as error:
                found.append((type(error), str(error)))
        return found

    mine = both(fetches)
    assert mine == both(lambda loader: iter(loader).__next__)
    assert mine[1] != both(lambda loader: iter(loader).__next__)[0]


def test_a_batch_is_the_steps_own() -> None:
    data = pairs()
    kept = data.tensors[0].clone()
    x, _ = fetches(DataLoader(data, 8))()
    x.zero_()
    assert torch.equal(data.tensors[0], kept)


def test_batches_are_pinned_where_the_loader_pins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator: Any = Cursor(DataLoader(pairs(), 8)).walk.iterate(0)
    monkeypatch.setattr(pinning, "pin_memory", lambda batch, device=None: ("pinned", batch))
    iterator.inner._pin_memory = True
    assert next(iterator)[0] == "pinned"


def test_a_profiler_sees_torchs_label() -> None:
    following = fetches(DataLoader(pairs(), 8))
    with torch.profiler.profile() as seen:
        following()
    assert any("DataLoader" in each.key for each in seen.key_averages())


# Whole trainings -------------------------------------------------------------------------------------


def one_by_one(samples: list[Any]) -> Any:
    """torch's collate under another name: such a loader's samples are looked up one by one."""
    return collate.default_collate(samples)


def loader(gathered: bool = True) -> DataLoader[Any]:
    data = Subset(ConcatDataset([pairs(), pairs(20)]), range(55, 3, -1))
    own = {} if gathered else {"collate_fn": one_by_one}
    return DataLoader(data, batch_size=8, shuffle=True, **own)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def learner(directory: Path, seed: int | None, gathered: bool = True, resume: bool = False) -> Learner:
    net = model()
    builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(3).renderer("silent")
    builder.with_file_checkpointer()
    if seed is not None:
        builder.seed(seed)
    if resume:
        builder.resume()
    return builder.build(net, torch.optim.Adam(net.parameters(), lr=1e-2), None, loader(gathered))


def test_shuffled_training_is_the_loop_by_hand_to_the_bit(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(3):
        for x, y in loader():
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    draw = torch.rand(3)
    with stacks() as found:
        trained = learner(tmp_path, None).fit()
    assert not found
    assert torch.equal(torch.rand(3), draw)
    for mine, theirs in zip(trained.parameters(), net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("seed", [None, 5])
def test_rewound_and_resumed_it_ends_as_the_data_read_one_by_one(seed: int | None, tmp_path: Path) -> None:
    straight = learner(tmp_path / "one by one", seed, gathered=False)
    straight.fit()
    first = learner(tmp_path / "gathered", seed)
    with stacks() as found:
        first.step(4)
        first.rewind(3)
        first.step(6)
        first.rewind(to=(1, 2))
        first.step(2)
        first.save()
        first._replica.saving.close()  # as at the end of a process
        second = learner(tmp_path / "gathered", seed, resume=True)
        assert second.position.step == 4
        second.fit()
    assert not found
    assert list(differences(everything(second), everything(straight))) == []

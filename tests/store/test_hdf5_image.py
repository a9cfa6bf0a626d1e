import io

import h5py
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.store.hdf5_image import (
    ALIGNED,
    ALIGNMENT,
    LATE,
    LONGEST,
    PAGE,
    SOON,
    USER_BLOCK,
    Dataset,
    build,
    dataset_paths,
    escaped,
    room_for,
    unescaped,
    well_placed,
)
from notebook_learner.store.tensors import nbytes_of


def filled(datasets: list[Dataset], room: int, fill: bytes) -> bytes:
    """The file of an image, with one byte everywhere in its tensors, and "m" in its manifest."""
    image = build(datasets, room)
    sizes = [room, *(nbytes_of(dataset.dtype, dataset.shape) for dataset in datasets)]
    parts = [
        part if isinstance(part, bytes) else (fill if part else b"m") * sizes[part] for part in image.parts
    ]
    data = bytes(USER_BLOCK) + b"".join(parts)
    assert len(data) == image.size
    return data


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.int8, torch.bfloat16, torch.bool, torch.float8_e5m2])


@given(st.lists(st.tuples(dtypes, shapes), max_size=30), st.sampled_from([512, 4096]))
def test_h5py_finds_every_dataset_where_the_image_says(
    kinds: list[tuple[torch.dtype, tuple[int, ...]]], room: int
) -> None:
    datasets = [Dataset((f"group {i % 3}/{i}",), dtype, shape) for i, (dtype, shape) in enumerate(kinds)]
    image = build(datasets, room)
    data = filled(datasets, room, b"\1")
    with h5py.File(io.BytesIO(data), "r") as file:
        assert file["manifest"][()] == b"m" * room
        assert file["manifest"].id.get_offset() == image.manifest
        for dataset, places in zip(datasets, image.places, strict=True):
            found = file[dataset.paths[0]]
            assert places == ((found.id.get_offset(),) if found.size else (0,))
            size = nbytes_of(dataset.dtype, dataset.shape)
            assert not size or data[places[0] : places[0] + size] == b"\1" * size


def test_the_place_of_a_large_tensor_takes_no_memory() -> None:
    image = build([Dataset(("w",), torch.float32, (1 << 30,))], 512)
    assert image.size > 4 << 30
    assert sum(len(part) for part in image.parts if isinstance(part, bytes)) < 10_000


def test_large_tensors_are_aligned_and_small_ones_lie_side_by_side() -> None:
    sizes = [1, 7, ALIGNED, 3, 2 * ALIGNED + 1, ALIGNED - 1, 64]
    image = build([Dataset((f"{size}",), torch.uint8, (size,)) for size in sizes], 512)
    starts = [start for (start,) in image.places]
    assert all(start % ALIGNMENT == 0 for start, size in zip(starts, sizes, strict=True) if size >= ALIGNED)
    many = build([Dataset((f"{i}",), torch.float32, (54, 67)) for i in range(500)], 512)
    assert [number for number in many.parts if isinstance(number, int)][1:] == list(range(1, 501))
    assert len(many.parts) < 500 + 6  # nothing between them


@pytest.mark.parametrize("before", [1, 500, 1000, 3000, 4001])
def test_large_tensors_begin_where_copying_them_is_fast(before: int) -> None:
    small = Dataset(("small",), torch.uint8, (before,))
    datasets = [small, *[Dataset((f"{i}",), torch.float32, (1024, 1024)) for i in range(3)]]
    image, room = well_placed(datasets, 512)
    for (start,) in image.places[1:]:
        assert SOON <= start % PAGE <= LATE
    assert 512 <= room < 512 + PAGE and image == build(datasets, room)
    assert well_placed([small], 512) == (build([small], 512), 512)


def test_two_thousand_small_tensors_cost_little_around_them() -> None:
    datasets = [Dataset((f"state/{i // 3}/{i % 3}",), torch.float32, (16,)) for i in range(2000)]
    image = build(datasets, 1 << 18)
    around = sum(len(part) for part in image.parts if isinstance(part, bytes))
    assert around < 2000 * 700


def test_several_paths_are_one_dataset() -> None:
    data = filled([Dataset(("a/w", "b/w", "c"), torch.float32, (3,))], 512, b"\0")
    with h5py.File(io.BytesIO(data), "r") as file:
        assert file["a/w"] == file["b/w"] == file["c"]


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1 << 20, (1 << 20) + 1])
def test_a_manifest_has_room_and_not_twice_too_much(length: int) -> None:
    room = room_for(length)
    assert length <= room < max(513, 2 * length) and room & (room - 1) == 0


class TestNames:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    def test_short_names_come_back(self, name: str) -> None:
        found = escaped(name)
        assert unescaped(found) == name
        assert found and "/" not in found and "\0" not in found and found.strip(".")

    @given(st.text(min_size=LONGEST, max_size=3 * LONGEST))
    def test_long_names_are_cut_and_stay_apart(self, name: str) -> None:
        assert len(escaped(name).encode()) <= LONGEST
        assert escaped(name) != escaped(name + "x")

    @given(st.lists(st.lists(st.sampled_from(["a", "b", "a~2", "", "manifest"]), max_size=3), max_size=20))
    def test_no_two_datasets_and_no_dataset_and_group_have_one_path(self, names: list[list[str]]) -> None:
        half = len(names) // 2
        keys = [tuple(name) for name in names]
        found = dataset_paths(keys[:half], [(0, key) for key in keys[half:]] if half else [])
        paths = [path for some in found for path in some]
        assert len(set(paths)) == len(paths) and "manifest" not in paths
        for path in paths:
            assert not any(other.startswith(path + "/") for other in paths)

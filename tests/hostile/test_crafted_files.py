"""Files that were made to hurt: links out of the directory, bombs, pickles, pipes. Each is opened by a
process that is watched; none of them makes it read elsewhere, run code, load the HDF5 library, wait, or
grow."""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import zlib
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pytest
from hostile_mutations import (
    digest,
    hdf5_document,
    index_document,
    json_bytes,
    messagepack_document,
    recommitted,
    safetensors_document,
    sealed_hdf5,
    sealed_index,
    sealed_messagepack,
)
from hostile_run import Samples, put
from hostile_watched import WATCHED, assert_harmless

from notebook_learner.store.budget import LARGEST_CHUNK
from notebook_learner.store.hdf5_manifest import SCHEMA, header
from notebook_learner.store.tensors import DTYPES

# HDF5 of a stranger ------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/executed",)


def external_link(file: Any) -> None:
    file["elsewhere"] = h5py.ExternalLink("/etc/hostname", "/")


def external_storage(file: Any) -> None:
    file.create_dataset("outside", (8,), "u1", external=[("/etc/hostname", 0, 8)])


def virtual_dataset(file: Any) -> None:
    layout = h5py.VirtualLayout((8,), "f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "weight", (8,))
    file.create_virtual_dataset("weight", layout)


def soft_link(file: Any) -> None:
    file["weight"] = h5py.SoftLink("/../../etc/passwd")
    file["loop"] = h5py.SoftLink("/loop")


def cycle(file: Any) -> None:
    file.create_group("a")["b"] = file["/"]


def endless(file: Any) -> None:
    file.create_dataset("weight", (1 << 44,), "u1", chunks=(1 << 20,), fillvalue=1)


def bomb(file: Any) -> None:
    file.create_dataset("weight", data=np.zeros(1 << 24, np.uint8), chunks=(1 << 24,), compression="gzip")


def unknown_filter(file: Any) -> None:
    file.create_dataset("weight", (4096,), "u1", chunks=(4096,)).id.write_direct_chunk(
        (0,), b"x" * 9, filter_mask=0
    )


def pickles(file: Any) -> None:
    file.attrs["state"] = np.void(pickle.dumps(Evil()))
    file.create_dataset("code", data=np.void(pickle.dumps(Evil())))


STRANGE: list[Callable[[Any], None]] = [
    external_link,
    external_storage,
    virtual_dataset,
    soft_link,
    cycle,
    endless,
    bomb,
    unknown_filter,
    pickles,
]


@pytest.mark.parametrize("craft", STRANGE)
@pytest.mark.parametrize("name", ["model-2-3.h5", "state-2-3.h5"])
def test_hdf5_of_a_stranger_is_refused(
    craft: Callable[[Any], None], name: str, samples: Samples, tmp_path: Path
) -> None:
    put(tmp_path / "run", samples["h5"])
    path = tmp_path / "run" / "checkpoint" / name
    path.unlink()
    with h5py.File(path, "w") as file:
        craft(file)
    assert_harmless(tmp_path / "run", 1)


@pytest.mark.parametrize("craft", STRANGE)
def test_what_hdf5_says_in_a_file_of_ours_does_not_matter(
    craft: Callable[[Any], None], samples: Samples, tmp_path: Path
) -> None:
    """The structure is altered, the manifest stays, and an attacker puts its checksums right."""
    name = "checkpoint/model-2-3.h5"
    files = dict(samples["h5"])
    plain = io.BytesIO(files[name])
    with h5py.File(plain, "r+") as file:
        craft(file)
    altered = plain.getvalue()
    assert altered != files[name]
    put(tmp_path / "damaged", {**files, name: altered})
    assert_harmless(tmp_path / "damaged", 1)

    files[name] = sealed_hdf5(altered, hdf5_document(samples["h5"][name]))
    recommitted(files, name)
    put(tmp_path / "sealed", files)
    assert_harmless(tmp_path / "sealed", 0)


def test_an_index_of_a_stranger_is_not_followed(samples: Samples, tmp_path: Path) -> None:
    put(tmp_path / "run", samples["h5"])
    (tmp_path / "run" / "artifacts.h5").unlink()
    with h5py.File(tmp_path / "run" / "artifacts.h5", "w") as file:
        external_link(file)
        external_storage(file)
        pickles(file)
    assert_harmless(tmp_path / "run", 0)


# Links, pipes, devices -----------------------------------------------------------------------------------


def as_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_loop(path: Path) -> None:
    path.symlink_to(path)


def as_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("kind", [as_link, as_device, as_pipe, as_loop, as_folder])
@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/model-2-3.h5",
        "checkpoint/state-2-3.h5",
        "artifacts.h5",
        "experiment.log",
        "train/epoch-1/Loss.log",
    ],
)
def test_what_is_no_file_is_not_read(
    kind: Callable[[Path], None], name: str, samples: Samples, tmp_path: Path
) -> None:
    put(tmp_path / "run", samples["h5"])
    path = tmp_path / "run" / name
    path.unlink(missing_ok=True)
    kind(path)
    assert_harmless(tmp_path / "run", name.startswith("checkpoint/"))


def test_a_checkpoint_folder_elsewhere_is_refused(samples: Samples, tmp_path: Path) -> None:
    put(tmp_path / "run", samples["h5"])
    os.rename(tmp_path / "run" / "checkpoint", tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    found = WATCHED.look(tmp_path / "run")
    assert found["errors"] == [] and found["damaged"] == 1
    assert not any(line.startswith("open ") for line in found["seen"])


# Texts and bombs -------------------------------------------------------------------------------------------


TEXTS: dict[str, bytes] = {
    "nested a million times": b'{"tree":' + b"[" * 10**6 + b"]" * 10**6 + b"}",
    "nested objects": b'{"tree":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"}",
    "no number": b'{"tree":NaN,"schema":Infinity,"tensors":[],"metadata":"' + b"0" * 32 + b'"}',
    "a number of many digits": b'{"schema":1,"tree":' + b"9" * 10**5 + b',"tensors":[]}',
    "a name twice": b'{"schema":1,"schema":1,"tree":1,"tree":{"$tensor":0},"tensors":[]}',
    "no UTF-8": b'{"schema":1,"tree":"\xff\xfe"}',
    "nothing": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("kind", ["h5", "safetensors", "index", "mpk"])
def test_texts_that_are_none(what: str, kind: str, samples: Samples, tmp_path: Path) -> None:
    text, files = TEXTS[what], dict(samples["h5" if kind == "index" else kind])
    if kind == "h5":
        text = text.replace(b'"schema":1', b'"schema":%d' % SCHEMA)
        data = files["checkpoint/state-2-3.h5"]
        files["checkpoint/state-2-3.h5"] = (
            header(len(data) + len(text), len(data), len(text), digest(text)) + data[512:] + text
        )
    elif kind == "safetensors":
        files["checkpoint/state-2-3.safetensors"] = len(text).to_bytes(8, "little") + text
    elif kind == "mpk":
        files["checkpoint/state-2-3.mpk.gz"] = gzip.compress(text)
    else:
        files["artifacts.h5"] = sealed_index(files["artifacts.h5"], text)
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", 0 if kind == "index" else 1)


def _tensors(document: Any, change: Callable[[Any], None]) -> Any:
    change(document["tensors"])
    return document


MESSAGEPACK: dict[str, Callable[[Any], bytes]] = {
    "an extension": lambda document: sealed_messagepack(
        {**document, "tree": msgpack.ExtType(1, pickle.dumps(Evil()))}
    ),
    "a time": lambda document: sealed_messagepack({**document, "tree": msgpack.Timestamp(1, 1)}),
    "bytes in the tree": lambda document: sealed_messagepack({**document, "tree": b"x"}),
    "a key that is a number": lambda document: sealed_messagepack({**document, "tree": {1: 2}}),
    "an array of four billion": lambda document: gzip.compress(
        b"\x84\xa6format\xb0notebook_learner\xa6schema\x01\xa4tree\xdd\xff\xff\xff\xff"
    ),
    "a text of four billion": lambda document: gzip.compress(
        b"\x84\xa6format\xb0notebook_learner\xa6schema\x01\xa4tree\xdb\xff\xff\xff\xff"
    ),
    "nested without end": lambda document: gzip.compress(
        b"\x84\xa6format\xb0notebook_learner\xa6schema\x01\xa4tree" + b"\x91" * 10**6, 0
    ),
    "a bomb": lambda document: gzip.compress(
        b"\x84\xa6format\xb0notebook_learner\xa6schema\x01\xa4tree\xdb\x20\x00\x00\x00" + bytes(1 << 29)
    ),
    "a bomb of nils": lambda document: gzip.compress(
        b"\x84\xa6format\xb0notebook_learner\xa6schema\x01\xa4tree\xdd\x04\x00\x00\x00" + b"\xc0" * (1 << 26)
    ),
    "two members": lambda document: sealed_messagepack(document) * 2,
    "a tensor of 16 TiB": lambda document: sealed_messagepack(
        _tensors(document, lambda tensors: tensors[0].update(shape=[1 << 42]))
    ),
}


@pytest.mark.parametrize("what", MESSAGEPACK)
def test_messagepack_that_is_none_of_ours(what: str, samples: Samples, tmp_path: Path) -> None:
    name = "checkpoint/state-2-3.mpk.gz"
    files = dict(samples["mpk"])
    files[name] = MESSAGEPACK[what](messagepack_document(files[name]))
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", 1)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_chunk_that_unpacks_to_more_than_it_declares(codec: str, samples: Samples, tmp_path: Path) -> None:
    import zstandard

    name, files = "checkpoint/state-2-3.h5", dict(samples[codec])
    zeros = bytes(1 << 28)
    packed = zlib.compress(zeros) if codec == "gzip" else zstandard.ZstdCompressor().compress(zeros)
    document = hdf5_document(files[name])
    columns = document["tensors"]
    sizes = [math.prod(shape) * DTYPES[dtype].itemsize for dtype, shape in columns["kinds"]]
    number = next(number for number, kind in enumerate(columns["kind"]) if sizes[kind] > 1000)
    chunks = [{"offset": len(files[name]), "stored": len(packed)}]
    lie = [number, {"codec": codec, "chunk": sizes[columns["kind"][number]], "chunks": chunks}]
    others = [item for item in columns.get("packed", []) if item[0] != number]
    columns["packed"] = sorted([*others, lie], key=itemgetter(0))
    files[name] = sealed_hdf5(files[name] + packed, document)
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", 0)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_tensor_that_truly_is_dozens_of_times_as_large(
    codec: str, samples: Samples, tmp_path: Path
) -> None:
    """Nothing in it is a lie; it is only more memory than a file of its size is worth."""
    import zstandard

    name, files = "checkpoint/state-2-3.h5", dict(samples[codec])
    document = hdf5_document(files[name])
    columns, chunk = document["tensors"], LARGEST_CHUNK
    number = next(n for n, kind in enumerate(columns["kind"]) if columns["kinds"][kind][1])
    columns["kinds"].append(["uint8", [4 * chunk]])
    columns["kind"][number] = len(columns["kinds"]) - 1
    pack = zlib.compress if codec == "gzip" else zstandard.ZstdCompressor().compress
    chunks, more = [], b""
    for part in np.split(nearly_nothing(4 * chunk), 4):
        packed = pack(part.tobytes())
        chunks.append({"offset": len(files[name]) + len(more), "stored": len(packed)})
        more += packed
    packing = [number, {"codec": codec, "chunk": chunk, "chunks": chunks}]
    others = [item for item in columns.get("packed", []) if item[0] != number]
    columns["packed"] = sorted([*others, packing], key=itemgetter(0))
    files[name] = sealed_hdf5(files[name] + more, document)
    assert 20 * len(files[name]) < 4 * chunk < 90 * len(files[name])
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", 1)


def test_messagepack_that_truly_is_dozens_of_times_as_large(samples: Samples, tmp_path: Path) -> None:
    name, files = "checkpoint/state-2-3.mpk.gz", dict(samples["mpk"])
    document = messagepack_document(files[name])
    size = 1 << 25
    document["tensors"][0].update(dtype="uint8", shape=[size], data=[nearly_nothing(size).tobytes()])
    files[name] = sealed_messagepack(document, level=6)
    assert 20 * len(files[name]) < size < 90 * len(files[name])
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", 1)


def nearly_nothing(size: int) -> Any:
    """Bytes that shrink to a fiftieth."""
    data = np.zeros(size, np.uint8)
    data[::80] = np.random.RandomState(0).randint(0, 256, len(data[::80]))
    return data


def test_a_tensor_of_16_tebibytes(samples: Samples, tmp_path: Path) -> None:
    for kind in ("h5", "gzip"):
        name, files = "checkpoint/state-2-3.h5", dict(samples[kind])
        document = hdf5_document(files[name])
        columns = document["tensors"]
        columns["kinds"][columns["kind"][0]] = ["uint8", [1 << 44]]
        files[name] = sealed_hdf5(files[name], document)
        put(tmp_path / kind, files)
        assert_harmless(tmp_path / kind, 1)


def test_the_helpers_make_files_that_are_taken(samples: Samples, tmp_path: Path) -> None:
    """The negative control: with nothing changed, what the attacker puts right is right."""
    for kind in ("h5", "gzip", "zstd"):
        name, files = "checkpoint/state-2-3.h5", dict(samples[kind])
        document = hdf5_document(files[name])
        document["tree"]["more"] = "x" * 5000  # too long for its old place
        files[name] = sealed_hdf5(files[name], document)
        put(tmp_path / kind, files)
        assert WATCHED.look(tmp_path / kind)["damaged"] == 0
    files = dict(samples["mpk"])
    for name in [name for name in files if name.endswith("model-2-3.mpk.gz")]:
        files[name] = sealed_messagepack(messagepack_document(files[name]))
        recommitted(files, name)
    put(tmp_path / "mpk", files)
    assert WATCHED.look(tmp_path / "mpk")["damaged"] == 0
    assert safetensors_document(samples["safetensors"]["checkpoint/model-1.safetensors"])[0]
    index = samples["h5"]["artifacts.h5"]
    again = sealed_index(index, json_bytes(index_document(index)))
    put(tmp_path / "index", {**samples["h5"], "artifacts.h5": again})
    assert WATCHED.look(tmp_path / "index")["damaged"] == 0

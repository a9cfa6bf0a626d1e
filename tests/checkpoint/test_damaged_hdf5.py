import io
import json
import math
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hdf5_support import EXACT, HEADER, compressible, data_of, decoded, opened_by_h5py, reading, same
from torch import Tensor

from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.errors import DamagedError
from notebook_learner.store import durable, hdf5_manifest
from notebook_learner.store.durable import digest_of
from notebook_learner.store.hdf5_image import USER_BLOCK
from notebook_learner.store.hdf5_manifest import REMEMBERED
from notebook_learner.store.tensors import DTYPES


class TestDamage:
    @pytest.mark.parametrize("recorder", EXACT, ids=repr)
    def test_no_flipped_bit_is_overlooked(self, recorder: Hdf5Recorder, tmp_path: Path) -> None:
        value = {"w": torch.tensor([1.0, 2.0]), "x": compressible(200), "n": 1}
        data = data_of(recorder.encode(value))
        assert (b'"codec"' in data) == (recorder.compression is not None)
        path = tmp_path / "model-1.h5"
        path.write_bytes(data)
        descriptor = os.open(path, os.O_RDWR)
        try:
            file = durable.Reader(path, descriptor)
            assert same(recorder.decode(file).value, value)
            for place, byte in enumerate(data):
                for bit in range(8):
                    os.pwrite(descriptor, bytes([byte ^ 1 << bit]), place)
                    with pytest.raises(DamagedError):
                        recorder.decode(file)
                os.pwrite(descriptor, bytes([byte]), place)
            assert same(recorder.decode(file).value, value)
        finally:
            os.close(descriptor)

    def test_no_missing_or_added_byte_is_overlooked(self, tmp_path: Path) -> None:
        data = data_of(Hdf5Recorder().encode({"w": torch.ones(20)}))
        path = tmp_path / "model-1.h5"
        for length in [*range(len(data)), len(data) + 1]:
            path.write_bytes((data + b"\0")[:length])
            with durable.opened(path) as file, pytest.raises(DamagedError, match=r"model-1\.h5"):
                Hdf5Recorder().decode(file)

    def test_a_damaged_tensor_is_named(self, tmp_path: Path) -> None:
        data = bytearray(data_of(Hdf5Recorder().encode({"a": torch.ones(3), "b": torch.ones(3)})))
        with opened_by_h5py(bytes(data)) as file:
            data[file["b"].id.get_offset()] ^= 255
        with pytest.raises(
            DamagedError, match=r"model-1\.h5.*checksum of tensor 'b'.*use another checkpoint"
        ):
            decoded(bytes(data), tmp_path)

    def test_files_of_others(self, tmp_path: Path) -> None:
        other = io.BytesIO()
        with h5py.File(other, "w") as file:
            file["x"] = np.ones(1000)
        for data in (b"", b"PK\3\4" * 500, other.getvalue()):
            with pytest.raises(DamagedError, match=r"model-1\.h5"):
                decoded(data, tmp_path)

    @pytest.mark.parametrize(
        ("schema", "reader", "message"),
        [
            (7, 5, r"version 7.*version 5.*install a newer"),
            (1, 1, r"version 1 .*before the first release.*write it again"),
        ],
    )
    def test_a_newer_and_an_older_format_are_told_apart(
        self, schema: int, reader: int, message: str, tmp_path: Path
    ) -> None:
        data = data_of(Hdf5Recorder().encode({"w": torch.ones(3)}))
        magic, _, _, *rest = HEADER.unpack(data[: HEADER.size])
        with pytest.raises(DamagedError, match=message):
            decoded(user_block(magic, schema, reader, *rest) + data[USER_BLOCK:], tmp_path)

    def test_what_was_checked_before_is_checked_again_for_another_file(self, tmp_path: Path) -> None:
        """The same structure in a file that was cut, moved or forged is not taken for the one before."""
        first, second = {"w": torch.arange(40.0)}, {"w": torch.arange(40.0) + 1}
        data, other = (data_of(Hdf5Recorder().encode(value)) for value in (first, second))
        assert same(decoded(data, tmp_path).value, first)
        assert same(decoded(other, tmp_path).value, second)
        _, _, _, _, offset, room, _ = HEADER.unpack(data[: HEADER.size])
        text = data[offset : offset + room].rstrip(b"\0")
        wrong = text[:-34] + b"0" * 32 + b'"}'
        with pytest.raises(DamagedError, match="checksum of tensor 'w'"):
            decoded(with_manifest(data, wrong), tmp_path)
        for changed in (text[:-3] + b'A"}', text[:-35] + b'"}', text[:-1] + b"x", text + b" 1", text[:-2]):
            with pytest.raises(DamagedError, match="malformed"):
                decoded(with_manifest(data, changed), tmp_path)
        longer = with_manifest(data + b"\0", text, len(data) + 1)
        with pytest.raises(DamagedError, match="around its tensors"):
            decoded(longer, tmp_path)
        assert same(decoded(data, tmp_path).value, first)

    def test_few_structures_are_remembered(self, tmp_path: Path) -> None:
        for size in range(1, 3 * REMEMBERED):
            decoded(data_of(Hdf5Recorder().encode(torch.ones(size))), tmp_path)
        assert len(hdf5_manifest._CHECKED._kept) <= REMEMBERED

    def test_values_that_take_much_memory_are_not_remembered(self, tmp_path: Path) -> None:
        hdf5_manifest._CHECKED.clear()
        for value in ([[]] * 100_000, ["x" * hdf5_manifest.LONGEST_REMEMBERED]):
            decoded(data_of(Hdf5Recorder().encode(value)), tmp_path)
            assert not hdf5_manifest._CHECKED._kept
        decoded(data_of(Hdf5Recorder().encode([torch.ones(1)] * 100)), tmp_path)
        assert len(hdf5_manifest._CHECKED._kept) == 1


def user_block(*fields: Any) -> bytes:
    """The first bytes of a file, with a checksum that fits."""
    head = HEADER.pack(*fields)
    return (head + bytes.fromhex(digest_of(head))).ljust(USER_BLOCK, b"\0")


def with_manifest(data: bytes, text: bytes, size: int | None = None) -> bytes:
    """A file with another text in the place of its manifest, and with checksums of both that fit."""
    magic, schema, reader, _, offset, room, _ = HEADER.unpack(data[: HEADER.size])
    data = data[:offset] + text.ljust(room, b"\0") + data[offset + room :]
    digest = bytes.fromhex(digest_of(data[offset : offset + room]))
    block = user_block(magic, schema, reader, size or len(data), offset, room, digest)
    return block + data[USER_BLOCK:]


Change = Callable[[dict[str, Any]], object]


def forged(data: bytes, change: Change | bytes) -> bytes:
    """A file with another manifest, at its end, and with checksums that fit: what an attacker writes."""
    magic, schema, reader, size, offset, length, _ = HEADER.unpack(data[: HEADER.size])
    text = change if isinstance(change, bytes) else b""
    if not isinstance(change, bytes):
        document = json.loads(data[offset : offset + length].rstrip(b"\0"))
        document["tensors"] = in_entries(document["tensors"])
        document["metadata"] = digest_of(around_tensors(data, document))
        change(document)
        if "tensors" in document:
            document["tensors"] = in_columns(document["tensors"])
        text = json.dumps(document).encode()
    digest = bytes.fromhex(digest_of(text))
    block = user_block(magic, schema, reader, size + len(text), size, len(text), digest)
    return block + data[USER_BLOCK:] + text


def in_entries(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """The tensors of a manifest, an object for each."""
    entries = []
    for name, kind, offset in zip(columns["name"], columns["kind"], columns["offset"], strict=True):
        dtype, shape = columns["kinds"][kind]
        nbytes = math.prod(shape) * DTYPES[dtype].itemsize
        entries.append({"name": name, "dtype": dtype, "shape": shape, "offset": offset, "nbytes": nbytes})
    for number, packing in columns.get("packed", []):
        entries[number].update(packing)
    return entries


def in_columns(entries: list[dict[str, Any]]) -> dict[str, Any]:
    packed = [[i, entry] for i, entry in enumerate(entries) if "codec" in entry]
    return {
        "kinds": [[entry["dtype"], entry["shape"]] for entry in entries],
        "name": [entry["name"] for entry in entries],
        "kind": list(range(len(entries))),
        "offset": [entry["offset"] for entry in entries],
        **({"packed": packed} if packed else {}),
    }


def around_tensors(data: bytes, document: dict[str, Any]) -> bytes:
    parts, position = [], USER_BLOCK
    spans = []
    for entry in document["tensors"]:
        spans += [(chunk["offset"], chunk["stored"]) for chunk in entry.get("chunks", [])]
        spans += [] if "chunks" in entry else [(entry["offset"], entry["nbytes"])]
    for offset, size in sorted(spans):
        parts.append(data[position:offset])
        position = offset + size
    return b"".join([*parts, data[position:]])


def change(**fields: Any) -> Change:
    return lambda document: document["tensors"][0].update(fields)


def one_tensor_many_times(document: dict[str, Any]) -> None:
    first = document["tensors"][0]
    document["tensors"] = [{**first, "name": f"copy {i}"} for i in range(1000)]


LIES: dict[str, tuple[Change | bytes, str]] = {
    "16 TiB": (change(shape=[2**42]), "lies outside the file"),
    "beyond any memory": (change(shape=[2**40, 2**40]), "shape beyond any memory"),
    "beyond what 64 bits hold": (change(shape=[2**61]), "shape beyond any memory"),
    "empty but huge": (change(shape=[0, 2**61, 2**61]), "beyond any memory"),
    "negative": (change(shape=[-1, -40]), "a shape that is not a list of sizes"),
    "negative place": (change(offset=-1), "offset is no size"),
    "truth for a number": (change(shape=[True, 40]), "a shape that is not a list of sizes"),
    "a float for a number": (change(offset=512.0), "offset is no size"),
    "text for a number": (change(offset="512"), "offset is no size"),
    "no dtype": (lambda d: d["tensors"][0].update(dtype=[]), "a kind that is not a dtype and a shape"),
    "many dimensions": (change(shape=[1] * 1000 + [40]), "dimensions"),
    "unknown dtype": (change(dtype="float7"), "unknown dtype"),
    "quantized dtype": (change(dtype="qint8"), "unknown dtype"),
    "outside": (change(offset=2**40), "lies outside the file"),
    "in the header": (change(offset=0), "in the same place"),
    "one place for many": (one_tensor_many_times, "in the same place"),
    "one name for two": (lambda d: d["tensors"][1].update(name="w"), "one name for two"),
    "no tensors": (lambda d: d.pop("tensors"), "no tensors"),
    "no tree": (lambda d: d.pop("tree"), "no tree"),
    "a tensor that is not there": (lambda d: d.update(tree={"$tensor": 99}), "not there"),
    "code": (lambda d: d.update(tree={"$module": "os.system"}), "unknown kind of value"),
    "another schema": (lambda d: d.update(schema=1), "another version"),
    "no checksums": (lambda d: d.pop("digests"), "no digests"),
    "one checksum less": (lambda d: d.update(digests=d["digests"][32:]), "32 digits of checksums for 2"),
    "a checksum that is none": (lambda d: d.update(digests="x" * 64), "malformed"),
    "a checksum with spaces": (lambda d: d.update(digests=" " + d["digests"][1:-1] + " "), "checksum"),
    "a checksum in capitals": (
        lambda d: d.update(digests="A" * 64),
        "a checksum that is not in lower-case hex",
    ),
    "bomb": (
        change(shape=[10_000], codec="gzip", chunk=40_000, chunks=[{"offset": 512, "stored": 1}]),
        "more than 2 times its size, as a bomb would",
    ),
    "a huge chunk": (
        change(shape=[4 << 20], codec="gzip", chunk=16 << 20, chunks=[{"offset": 512, "stored": 1}]),
        "a chunk larger than any that is written",
    ),
    "a chunk of nothing": (
        change(codec="gzip", chunk=160, chunks=[{"offset": 512, "stored": 0}]),
        "or an empty one",
    ),
    "a chunk that is larger than what it holds": (
        change(codec="gzip", chunk=160, chunks=[{"offset": 512, "stored": 1400}]),
        "a chunk larger than any that is written",
    ),
    "no chunks": (change(codec="gzip", chunk=160, chunks=[]), "do not make its bytes"),
    "unknown compression": (change(codec="lzma", chunk=160, chunks=[]), "unknown compression"),
    "rounded but not half": (lambda d: d.update(rounded={"w": ["float32", 0.1]}), "no tensor in half"),
    "deep": (b"[" * 200_000, "nested too deep|malformed"),
    "deep tree": (lambda d: d.update(tree=json.loads("[" * 500 + "]" * 500)), "nested too deep"),
    "nan": (b'{"schema":3,"tree":NaN,"tensors":[]}', "NaN is no JSON"),
    "huge number": (b'{"schema":' + b"9" * 10_000 + b"}", "malformed"),
    "no JSON": (b"import os", "malformed"),
    "no text": (b"\xff\xfe\xfd", "malformed"),
    "no object": (b"[]", "no tree"),
}


class TestHostileFiles:
    def test_a_forged_file_that_tells_the_truth_is_read(self, tmp_path: Path) -> None:
        for recorder in EXACT:
            value = {"w": compressible(4000), "x": torch.arange(3)}
            data = forged(data_of(recorder.encode(value)), lambda document: None)
            assert (b'"codec"' in data) == (recorder.compression is not None)
            assert same(decoded(data, tmp_path).value, value)

    @pytest.mark.parametrize("lie", LIES)
    @pytest.mark.parametrize("how", ["decode", "outline"])
    def test_a_lie_with_right_checksums_is_refused_before_memory_is_taken(
        self, lie: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = [0]
        make = torch.empty

        def watched(*args: Any, **options: Any) -> Tensor:
            made = make(*args, **options)
            sizes.append(0 if made.is_meta else made.nbytes)
            return made

        monkeypatch.setattr(torch, "empty", watched)
        data = data_of(Hdf5Recorder().encode({"w": torch.arange(40.0), "x": torch.arange(3)}))
        made, why = LIES[lie]
        with reading(forged(data, made), tmp_path) as file:
            tracemalloc.start()
            with pytest.raises(DamagedError, match=why):
                getattr(Hdf5Recorder(), how)(file)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert sum(sizes) <= len(data) and peak < 20 << 20

    def test_a_stranger_may_not_promise_less_than_a_stream_unpacks_to(self, tmp_path: Path) -> None:
        for codec in ("gzip", "zstd"):
            value = {"w": compressible(4000)}
            data = data_of(Hdf5Recorder(compression=codec).encode(value))  # type: ignore[arg-type]
            assert b'"codec"' in data
            unpacked = r"tensor 'w': (it unpacks|compressed|zstd decompress)"
            for rows, why in {3000: unpacked, 3999: unpacked, 4001: unpacked, 40_000: "2 times"}.items():

                def lie(document: dict[str, Any], rows: int = rows) -> None:
                    document["tensors"][0].update(shape=[rows], nbytes=8 * rows, chunk=8 * rows)

                with pytest.raises(DamagedError, match=why):
                    decoded(forged(data, lie), tmp_path)

    @pytest.mark.parametrize("codec", ["gzip", "zstd"])
    def test_what_would_look_like_a_bomb_is_stored_plain(self, codec: Any, tmp_path: Path) -> None:
        value = {"zeros": torch.zeros(100_000), "noise": torch.randn(1000)}
        data = data_of(Hdf5Recorder(compression=codec).encode(value))
        assert len(data) > 400_000
        assert same(decoded(data, tmp_path).value, value)

    @pytest.mark.parametrize("codec", ["gzip", "zstd"])
    def test_what_shrinks_most_is_stored_plain_until_the_file_is_no_bomb(
        self, codec: Any, tmp_path: Path
    ) -> None:
        value = {"zeros": torch.zeros(10_000), "few": compressible(9000) % 3, "most": compressible(9000)}
        with opened_by_h5py(data_of(Hdf5Recorder(compression=codec).encode(value))) as file:
            stored = {name: file[name].id.get_storage_size() for name in value}
        assert stored["few"] == 72_000
        assert stored["zeros"] < 1000 and 36_000 < stored["most"] < 70_000
        sizes = sum(tensor.nbytes for tensor in value.values())
        assert sizes / 2 <= sum(stored.values()) < sizes

    def test_chains_of_links_and_pipes_are_not_followed(self, tmp_path: Path) -> None:
        real, link = tmp_path / "real.h5", tmp_path / "model-1.h5"
        real.write_bytes(data_of(Hdf5Recorder().encode({"w": torch.ones(3)})))
        link.symlink_to(real)
        with pytest.raises(OSError, match="model-1"), durable.opened(link) as file:
            Hdf5Recorder().decode(file)

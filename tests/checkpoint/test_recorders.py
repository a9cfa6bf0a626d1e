"""Every recorder keeps what the contract promises; and what is particular to a format."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
import safetensors
import safetensors.torch
import torch
from recorder_contract import (
    NoCopyContract,
    RecorderContract,
    decoded,
    file_of,
    nested,
    random_tensor,
    require_same,
    small,
    through,
    whole,
)

from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.checkpoint.messagepack import NamedMpkGzRecorder
from notebook_learner.checkpoint.recorder import Recorder
from notebook_learner.checkpoint.safetensors import LONGEST_HEADER, NAMES, SafetensorsRecorder
from notebook_learner.errors import CheckpointError, DamagedError
from notebook_learner.store.durable import digest_of


class TestHdf5(RecorderContract, NoCopyContract):
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Hdf5Recorder()


class TestHdf5WithGzip(RecorderContract):
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Hdf5Recorder(compression="gzip")


class TestHdf5WithZstd(RecorderContract):
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Hdf5Recorder(compression="zstd")


# ---------------------------------------------------------------------------------------- MessagePack


def document(**changes: Any) -> dict[str, Any]:
    """What is in a file, with something else in it."""
    tensor = {"name": "weight", "dtype": "float32", "shape": [2], "data": [struct.pack("<ff", 1.0, 2.0)]}
    made = {
        "format": "notebook_learner",
        "schema": 1,
        "tree": {"weight": {"$tensor": 0}},
        "tensors": [tensor | changes.pop("tensor", {})],
    }
    return made | changes


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, 0, mtime=0)


class TestNamedMpkGz(RecorderContract):
    @pytest.fixture
    def recorder(self) -> Recorder:
        return NamedMpkGzRecorder()

    def test_gzip_and_msgpack_of_others_read_it(self, recorder: Recorder) -> None:
        weight = random_tensor(torch.float32, 300, 7)
        value = {
            "encoder": {"weight": weight},
            "zeros": torch.zeros(5, 10_000),
            "numbers": [1, -1, 2**63, 0.1],
        }
        found = msgpack.unpackb(gzip.decompress(whole(recorder.encode(value))))
        assert list(found) == ["format", "schema", "tree", "tensors"]
        assert (found["format"], found["schema"]) == ("notebook_learner", 1)
        assert found["tree"] == {
            "encoder": {"weight": {"$tensor": 0}},
            "zeros": {"$tensor": 1},
            "numbers": [1, -1, 2**63, 0.1],
        }
        first, second = found["tensors"]
        assert (first["name"], first["dtype"], first["shape"]) == ("encoder/weight", "float32", [300, 7])
        assert b"".join(first["data"]) == weight.numpy().tobytes()
        assert b"".join(second["data"]) == bytes(200_000)

    def test_it_reads_what_msgpack_and_gzip_of_others_wrote(self, recorder: Recorder) -> None:
        tree = {"numbers": [0, 127, 128, -32, -33, 1 << 15, -(1 << 31), 1 << 40, 0.5], "text": "x" * 70_000}
        tree |= {
            "many": list(range(70_000)),
            "keys": {str(n): n for n in range(70_000)},
            "weight": {"$tensor": 0},
        }
        data = zipped(msgpack.packb(document(tree=tree)))
        require_same(decoded(recorder, data).value, tree | {"weight": torch.tensor([1.0, 2.0])})

    def test_a_tensor_may_come_in_pieces(self, recorder: Recorder) -> None:
        pieces = [b"", b"\0\0", b"\x80\x3f\0\0", b"\0\x40", b""]
        data = zipped(msgpack.packb(document(tensor={"data": pieces})))
        require_same(decoded(recorder, data).value, {"weight": torch.tensor([1.0, 2.0])})

    def test_a_tensor_larger_than_a_piece_and_a_segment_comes_back(self, recorder: Recorder) -> None:
        value = {"weight": random_tensor(torch.uint8, (16 << 20) + 3), "zeros": torch.zeros(5 << 20)}
        require_same(through(recorder, value), value)

    def test_zeros_shrink_to_the_half_that_a_reader_believes(self, recorder: Recorder) -> None:
        value = {"zeros": torch.zeros(10 << 20), "list": [0] * 100_000, "text": "a" * 1_000_000}
        encoded = recorder.encode(value)
        raw = len(gzip.decompress(whole(encoded)))
        assert encoded.size * 1.9 < raw <= encoded.size * 2
        require_same(decoded(recorder, encoded).value, value)

    def test_nothing_depends_on_the_time(self, recorder: Recorder) -> None:
        assert whole(recorder.encode({}))[4:8] == bytes(4)

    def test_a_bomb_of_zeros_is_refused_before_it_goes_off(self, recorder: Recorder) -> None:
        count = 64 << 20
        raw = document(tensor={"dtype": "uint8", "shape": [count], "data": [bytes(count)]})
        data = gzip.compress(msgpack.packb(raw), 9)
        self.require_refused_cheaply(recorder, data)

    def test_a_bomb_of_values_is_refused_before_it_goes_off(self, recorder: Recorder) -> None:
        data = gzip.compress(msgpack.packb(document(tree=[{}] * 5_000_000)), 9)
        self.require_refused_cheaply(recorder, data)

    def test_a_bomb_of_lengths_is_refused_before_it_goes_off(self, recorder: Recorder) -> None:
        head = msgpack.packb({"format": "notebook_learner", "schema": 1, "tree": 0, "tensors": 0})
        head = head[: head.index(b"\xa4tree") + 5]
        for claim in (
            b"\xdd\x7f\xff\xff\xff" * 300,
            b"\xdf\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\x91" * 600,
        ):
            self.require_refused_cheaply(recorder, zipped(head + claim + bytes(20_000)))

    def test_a_bomb_of_tensors_is_refused_before_it_goes_off(self, recorder: Recorder) -> None:
        for shape in (
            [1 << 40],
            [1 << 61, 1 << 61],
            [0, 1 << 61, 1 << 61],
            [1] * 65,
            [-1],
            [2.0],
            [True, 2],
            "2",
        ):
            self.require_refused_cheaply(recorder, zipped(msgpack.packb(document(tensor={"shape": shape}))))

    def require_refused_cheaply(self, recorder: Recorder, data: bytes) -> None:
        with file_of(recorder, data) as file:
            for read in (recorder.decode, recorder.outline):
                tracemalloc.start()
                try:
                    with pytest.raises(DamagedError):
                        read(file)
                    assert tracemalloc.get_traced_memory()[1] < (16 << 20) + 100 * len(data)
                finally:
                    tracemalloc.stop()

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (document(format="other"), "no checkpoint"),
            (document(schema=2), "version 2"),
            (document(more=1), "no checkpoint"),
            (document(tree={"weight": {"$tensor": 1}}), "tree is malformed"),
            (document(tree={"weight": {"$code": "x"}}), "unknown kind"),
            (document(tree={"$int": "one"}), "integer"),
            (document(tree=b"bin"), "does not belong"),
            (document(tree=msgpack.ExtType(1, b"ext")), "does not belong"),
            (document(tree=msgpack.Timestamp(1)), "does not belong"),
            (document(tree={1: 2}), "no text"),
            (document(tensors={}), "array is missing"),
            (document(tensors=[3]), "tensor 0"),
            (document(tensor={"name": 1}), "tensor 0: its name"),
            (document(tensor={"dtype": "float3"}), "tensor 0: its dtype is unknown"),
            (document(tensor={"dtype": ["float32"]}), "tensor 0: its dtype is unknown"),
            (document(tensor={"dtype": "qint8"}), "tensor 0: its dtype is unknown"),
            (document(tensor={"shape": [3]}), "tensor 0: it has 8 bytes"),
            (document(tensor={"shape": [1]}), "tensor 0: it has more bytes"),
            (document(tensor={"data": []}), "tensor 0: it has 0 bytes"),
            (document(tensor={"data": ["text"]}), "tensor 0: its data is no bin"),
            (document(tensor={"more": 1}), "tensor 0"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_no_writer_wrote_is_refused_with_the_reason(
        self, recorder: Recorder, made: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(DamagedError) as caught:
            decoded(recorder, zipped(msgpack.packb(made)))
        assert said in str(caught.value)
        assert "state-1.mpk.gz" in str(caught.value)

    def test_a_key_that_comes_twice_and_bad_text_are_refused(self, recorder: Recorder) -> None:
        data = msgpack.packb(document(tree={"a": 1, "b": "xyz"}))
        for old, new in ((b"\xa1b", b"\xa1a"), (b"xyz", b"\xff\xff\xff")):
            assert data.count(old) == 1
            with pytest.raises(DamagedError):
                decoded(recorder, zipped(data.replace(old, new)))

    def test_something_after_the_document_or_after_the_gzip_member_is_refused(
        self, recorder: Recorder
    ) -> None:
        data = msgpack.packb(document())
        for made in (zipped(data + b"\xc0"), zipped(data) + zipped(b""), zipped(data) + b"\0"):
            with pytest.raises(DamagedError, match="something follows its end"):
                decoded(recorder, made)

    def test_a_wrong_checksum_is_found_at_the_end(self, recorder: Recorder) -> None:
        data = bytearray(zipped(msgpack.packb(document())))
        data[-8:-4] = struct.pack("<I", zlib.crc32(b"other"))
        with pytest.raises(DamagedError, match="cannot be unpacked"):
            decoded(recorder, bytes(data))


# ---------------------------------------------------------------------------------------- safetensors


def header_of(data: bytes) -> dict[str, Any]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def with_header(header: Any, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


class TestSafetensors(RecorderContract, NoCopyContract):
    @pytest.fixture
    def recorder(self) -> Recorder:
        return SafetensorsRecorder()

    @pytest.mark.parametrize("name", sorted(NAMES))
    def test_the_real_library_reads_every_dtype_it_knows(self, recorder: Recorder, name: str) -> None:
        tensor = random_tensor(NAMES[name], 3, 5)
        found = safetensors.torch.load(whole(recorder.encode({"x": tensor, "scalar": tensor[0, 0].clone()})))
        require_same(dict(sorted(found.items())), {"scalar": tensor[0, 0].clone(), "x": tensor})

    def test_the_real_library_names_the_same_dtypes(self) -> None:
        assert safetensors.torch._TYPES == NAMES

    def test_the_real_library_reads_names_metadata_and_nested_tensors(
        self, recorder: Recorder, tmp_path: Any
    ) -> None:
        value = {
            "model": {"encoder.weight": random_tensor(torch.bfloat16, 4, 4)},
            "steps": [torch.tensor(3)],
            "lr": 0.1,
        }
        path = tmp_path / "model-1.safetensors"
        path.write_bytes(whole(recorder.encode(value)))
        with safetensors.safe_open(path, "pt") as file:
            assert set(file.keys()) == {"model.encoder.weight", "steps.0"}
            require_same(file.get_tensor("model.encoder.weight"), value["model"]["encoder.weight"])
            require_same(file.get_tensor("steps.0"), torch.tensor(3))
            ours = json.loads(file.metadata()["notebook_learner"])
        assert ours["tree"]["lr"] == 0.1
        assert ours["tree"]["model"]["encoder.weight"] == {"$tensor": 0}

    def test_the_real_library_reads_all_of_a_nested_state(self, recorder: Recorder) -> None:
        found = safetensors.torch.load(whole(recorder.encode([small(), nested()])))
        require_same(found["0.weight"], small()["weight"])

    def test_dtypes_that_the_format_has_no_name_for_are_bytes_to_others(self, recorder: Recorder) -> None:
        tensor = random_tensor(torch.complex32, 3, 2)
        found = safetensors.torch.load(whole(recorder.encode({"x": tensor})))
        require_same(found["x"], tensor.view(torch.uint8).reshape(-1))

    def test_a_file_of_the_real_library_is_read_as_its_tensors(self, recorder: Recorder) -> None:
        tensors = {"b": random_tensor(torch.float16, 3, 2), "a": torch.tensor(5), "empty": torch.empty(0, 3)}
        for metadata in (None, {"format": "pt"}):
            data = safetensors.torch.save(tensors, metadata)
            found = decoded(recorder, data)
            require_same(dict(sorted(found.value.items())), dict(sorted(tensors.items())))
            assert found.digest == digest_of(data)
            with file_of(recorder, data) as file:
                outline = recorder.outline(file).value
            assert {name: (t.dtype, t.shape) for name, t in outline.items()} == {
                name: (t.dtype, t.shape) for name, t in tensors.items()
            }

    def test_a_file_without_tensors_of_the_real_library_is_an_empty_dict(self, recorder: Recorder) -> None:
        assert decoded(recorder, safetensors.torch.save({})).value == {}

    def test_names_that_would_collide_are_told_apart(self, recorder: Recorder) -> None:
        value = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "__metadata__": torch.tensor(3)}
        value |= {
            "a.b~2": torch.tensor(4),
            "\ud800": torch.tensor(5),
            "notebook_learner.digest": torch.tensor(6),
        }
        data = whole(recorder.encode(value))
        assert sorted(map(int, safetensors.torch.load(data).values())) == [1, 2, 3, 4, 5, 6]
        require_same(decoded(recorder, data).value, value)

    def test_tied_tensors_are_there_once(self, recorder: Recorder) -> None:
        weight = torch.ones(3)
        assert list(safetensors.torch.load(whole(recorder.encode({"a": weight, "b": weight})))) == ["a"]

    def test_every_tensor_is_aligned_to_its_items(self, recorder: Recorder) -> None:
        kinds = [torch.uint8, torch.float64, torch.bool, torch.float32, torch.bfloat16, torch.complex128]
        data = whole(recorder.encode({str(kind): random_tensor(kind, 3) for kind in kinds}))
        header = header_of(data)
        assert int.from_bytes(data[:8], "little") % 8 == 0
        for kind in kinds:
            assert header[str(kind)]["data_offsets"][0] % min(kind.itemsize, 8) == 0

    def test_the_tensor_that_is_damaged_is_named(self, recorder: Recorder) -> None:
        data = bytearray(whole(recorder.encode({"one": torch.ones(4), "two": torch.ones(4)})))
        data[-1] ^= 1
        with pytest.raises(DamagedError, match="checksum of tensor 'two'"):
            decoded(recorder, bytes(data))

    def test_a_changed_header_is_noticed_by_the_outline_too(self, recorder: Recorder) -> None:
        data = whole(recorder.encode({"lr": 0.125}))
        assert data.count(b"0.125") == 1
        with (
            file_of(recorder, data.replace(b"0.125", b"0.250")) as file,
            pytest.raises(DamagedError, match="checksum"),
        ):
            recorder.outline(file)

    @pytest.mark.parametrize("missing", ["notebook_learner", "notebook_learner.digest"])
    def test_a_file_with_half_of_our_metadata_is_not_taken_for_a_strangers(
        self, recorder: Recorder, missing: str
    ) -> None:
        data = whole(recorder.encode({"x": torch.ones(2)}))
        header = header_of(data)
        del header["__metadata__"][missing]
        with pytest.raises(DamagedError):
            decoded(recorder, with_header(header, data[-8:]))

    def test_more_state_than_the_header_may_hold_is_refused(self, recorder: Recorder) -> None:
        with pytest.raises(CheckpointError, match=r"optim holds .* use Hdf5Recorder"):
            recorder.encode({"text": "a" * LONGEST_HEADER}, "optim")

    @pytest.mark.parametrize(
        ("header", "said"),
        [
            ({"a": entry(offsets=(0, 4))}, "shape does not fit"),
            ({"a": entry(shape=(3,))}, "shape does not fit"),
            ({"a": entry(offsets=(8, 0))}, "offsets"),
            ({"a": entry(offsets=(0, 8, 8))}, "offsets"),
            ({"a": entry(offsets=(-8, 0))}, "offsets"),
            ({"a": entry(offsets=(0.0, 8))}, "offsets"),
            ({"a": entry(offsets=None)}, "offsets"),
            ({"a": entry(shape=(1,), offsets=(4, 8))}, "begins at byte 4"),
            ({"a": entry(shape=(1,), offsets=(0, 4))}, "something follows"),
            ({"a": entry(shape=(4,), offsets=(0, 16))}, "cut short"),
            ({"a": entry(), "b": entry()}, "begins at byte 0"),
            ({"a": entry(), "b": entry(shape=(1 << 62, 0), offsets=(8, 8))}, "shape"),
            ({"a": entry(shape=(-1, -2))}, "shape"),
            ({"a": entry(shape=[1] * 64 + [2])}, "shape"),
            ({"a": entry(shape="2")}, "shape"),
            ({"a": entry(dtype="F4")}, "not known here"),
            ({"a": entry(dtype=["F32"])}, "not known here"),
            ({"a": entry() | {"more": 1}}, "no tensor"),
            ({"a": 3}, "no tensor"),
            ({"__metadata__": {"a": 1}, "a": entry()}, "metadata"),
            ({"__metadata__": "text", "a": entry()}, "metadata"),
            ([1], "no safetensors"),
        ],
    )
    def test_what_no_writer_wrote_is_refused_with_the_reason(
        self, recorder: Recorder, header: Any, said: str
    ) -> None:
        with pytest.raises(DamagedError) as caught:
            decoded(recorder, with_header(header, bytes(8)))
        assert said in str(caught.value)
        assert "state-1.safetensors" in str(caught.value)

    def test_a_header_that_claims_too_much_is_refused_unread(self, recorder: Recorder) -> None:
        for size in (LONGEST_HEADER + 1, 1 << 63, (1 << 64) - 1, 100):
            with pytest.raises(DamagedError, match="header claims"):
                decoded(recorder, struct.pack("<Q", size) + b"{}")

    @pytest.mark.parametrize(
        "text",
        [
            b"{",
            b"nope",
            b"[" * 100_000,
            b'{"a":NaN}',
            b'{"a":1,"a":1}',
            b"\xff\xff",
            b'{"a":' + b"9" * 5000 + b"}",
        ],
        ids=["cut", "none", "deep", "nan", "twice", "no UTF-8", "long number"],
    )
    def test_a_header_that_is_no_json_is_refused(self, recorder: Recorder, text: bytes) -> None:
        with pytest.raises(DamagedError):
            decoded(recorder, struct.pack("<Q", len(text)) + text)

    @pytest.mark.parametrize(
        "ours",
        [
            {"schema": 2, "tree": 0, "tensors": []},
            {"schema": 1, "tree": {"$code": 1}, "tensors": [["a", digest_of(bytes(8))]]},
            {"schema": 1, "tree": 0, "tensors": []},
            {"schema": 1, "tree": 0, "tensors": [["b", ""]]},
            {"schema": 1, "tree": 0, "tensors": [["a"]]},
            {"schema": 1, "tree": 0, "tensors": [["a", digest_of(bytes(8)), ["complex32", [2]]]]},
            {"schema": 1, "tree": 0, "tensors": {}},
            {"schema": 1, "tensors": []},
            [],
        ],
        ids=["version", "kind", "none", "other", "short", "dtype", "dict", "no tree", "list"],
    )
    def test_metadata_of_ours_with_a_right_checksum_is_still_not_believed(
        self, recorder: Recorder, ours: Any
    ) -> None:
        metadata = {"notebook_learner.digest": "0" * 32, "notebook_learner": json.dumps(ours)}
        text = json.dumps({"__metadata__": metadata, "a": entry()}, separators=(",", ":")).encode()
        data = struct.pack("<Q", len(text)) + text
        data = data.replace(b"0" * 32, digest_of(data).encode(), 1) + bytes(8)
        with pytest.raises(DamagedError) as caught:
            decoded(recorder, data)
        assert "checksum" not in str(caught.value)

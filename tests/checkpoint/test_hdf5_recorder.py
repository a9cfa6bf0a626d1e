import errno
import json
import math
import random
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hdf5_support import EXACT, any_bits, compressible, data_of, decoded, opened_by_h5py, reading, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from notebook_learner.checkpoint.hdf5 import CompactRecorder, Hdf5Recorder
from notebook_learner.checkpoint.recorder import Recorder
from notebook_learner.errors import CheckpointError, ConfigurationError, DamagedError
from notebook_learner.store import files, hdf5_codecs, hdf5_file, hdf5_reading
from notebook_learner.store.hdf5_columns import KNOWN
from notebook_learner.store.tensors import bytes_of


@pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:Sparse CSR tensor support")
class TestWhatComesBack:
    @pytest.mark.parametrize("recorder", EXACT, ids=repr)
    @pytest.mark.parametrize("name", sorted(KNOWN))
    def test_every_dtype_and_shape_bit_for_bit(self, name: str, recorder: Recorder, tmp_path: Path) -> None:
        dtype = KNOWN[name]
        value = [any_bits(dtype, shape) for shape in [(), (0,), (3, 0), (1,), (7,), (2, 3, 5)]]
        back = decoded(data_of(recorder.encode(value)), tmp_path, recorder).value
        assert same(back, value)

    @pytest.mark.parametrize("recorder", EXACT, ids=repr)
    def test_tensors_that_are_not_plain_memory(self, recorder: Recorder, tmp_path: Path) -> None:
        base = torch.arange(60.0).reshape(3, 4, 5)
        number = torch.randn(4, dtype=torch.complex64)
        value = {
            "transposed": base.transpose(0, 2),
            "every second": base[:, ::2],
            "expanded": torch.ones(1, 3).expand(4, 3),
            "conjugated": number.conj(),
            "negated": number.conj().imag,
            "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        }
        back = decoded(data_of(recorder.encode(value)), tmp_path, recorder).value
        for key, tensor in value.items():
            assert torch.equal(back[key], tensor.resolve_conj().resolve_neg()), key
        assert back["channels last"].is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("recorder", EXACT, ids=repr)
    def test_tied_tensors_are_stored_once_and_are_one_again(self, recorder: Recorder, tmp_path: Path) -> None:
        weight = torch.randn(100, 10)
        data = data_of(recorder.encode({"in": {"w": weight}, "out": {"w": weight}}))
        assert len(data) < 2 * 4000
        back = decoded(data, tmp_path, recorder).value
        assert back["in"]["w"] is back["out"]["w"]
        with opened_by_h5py(data) as file:
            assert file["in/w"] == file["out/w"]

    def test_values_that_are_no_tensors(self, tmp_path: Path) -> None:
        value = {
            "numbers": [1, -0.0, math.nan, math.inf, 2**80, True, None, 1 + 2j],
            "bytes": b"\0\xff",
            "tuple": (1, (2,)),
            "ordered": OrderedDict(a=1),
            3: {"\ud800": "\U0001f600"},
            "dtype": torch.bfloat16,
            "numpy": [np.arange(3, dtype=np.uint16), np.float64(0.1)],
            "parameter": nn.Parameter(torch.ones(2)),
        }
        back = decoded(data_of(Hdf5Recorder().encode(value)), tmp_path).value
        assert repr(back) == repr(value)
        assert type(back["parameter"]) is nn.Parameter

    def test_sparse_and_quantized_tensors(self, tmp_path: Path) -> None:
        sparse = torch.eye(4).to_sparse()
        back = decoded(data_of(Hdf5Recorder().encode([sparse, sparse.to_sparse_csr()])), tmp_path).value
        assert back[0].layout == torch.sparse_coo and torch.equal(back[0].to_dense(), torch.eye(4))
        assert back[1].layout == torch.sparse_csr and torch.equal(back[1].to_dense(), torch.eye(4))

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_any_nested_value(self, tmp_path: Path, data: st.DataObject) -> None:
        tensors = st.builds(
            any_bits,
            st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e5m2]),
            st.lists(st.integers(0, 4), max_size=3).map(tuple),
            st.integers(0, 1000),
        )
        plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
        value = data.draw(
            st.recursive(
                tensors | plain,
                lambda inner: (
                    st.lists(inner, max_size=4)
                    | st.tuples(inner, inner)
                    | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
                ),
                max_leaves=12,
            )
        )
        recorder = data.draw(st.sampled_from(EXACT))
        written = data_of(recorder.encode(value))
        assert same(decoded(written, tmp_path, recorder).value, value)
        with opened_by_h5py(written) as file:
            json.loads(file["manifest"][()])

    def test_the_digest_is_the_one_that_was_promised(self, tmp_path: Path) -> None:
        encoded = Hdf5Recorder().encode({"w": torch.ones(3)})
        with reading(data_of(encoded), tmp_path) as file:
            assert Hdf5Recorder().decode(file).digest == encoded.digest
            assert Hdf5Recorder().outline(file).digest == encoded.digest


class TestWriting:
    def test_contiguous_tensors_are_not_copied(self) -> None:
        tensor = torch.zeros(1000)
        encoded = Hdf5Recorder().encode({"w": tensor})
        tensor.fill_(1.0)
        assert tensor.numpy().tobytes() in data_of(encoded)

    @pytest.mark.parametrize("recorder", [*EXACT, CompactRecorder()], ids=repr)
    def test_equal_values_make_equal_files(self, recorder: Recorder) -> None:
        value = {
            "group": {"w": torch.arange(300.0)},
            "b": torch.ones(3),
            "f8": any_bits(torch.float8_e5m2, (3,)),
        }
        hdf5_file.STRUCTURES._kept.clear()
        first = data_of(recorder.encode(value))
        assert data_of(recorder.encode(value)) == first
        hdf5_file.STRUCTURES._kept.clear()
        assert data_of(recorder.encode(value)) == first

    def test_files_do_not_tell_when_they_were_written(self) -> None:
        value = {"group": {"w": torch.ones(3)}}
        first = data_of(Hdf5Recorder().encode(value))
        hdf5_file.STRUCTURES._kept.clear()
        time.sleep(1.1)
        assert data_of(Hdf5Recorder().encode(value)) == first

    def test_the_same_structure_is_built_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        built = []
        build = hdf5_file.well_placed
        monkeypatch.setattr(hdf5_file, "well_placed", lambda *a: built.append(1) or build(*a))
        recorder = Hdf5Recorder()
        for step in range(5):
            recorder.encode({"only here": torch.full((3,), float(step)), "step": step})
        assert len(built) == 1
        recorder.encode({"only here": torch.ones(4), "step": 0})
        assert len(built) == 2

    def test_values_that_equal_the_last_ones_but_are_others_are_written(self, tmp_path: Path) -> None:
        """A text that is kept from the checkpoint before is not taken for another one's."""
        for number in (1, True, 1.0, 0, False, 0.0, -0.0, 1, 2**64, "1", None):
            for value in ({"n": [number], "w": torch.ones(3)}, [number, torch.ones(3)], number):
                back = decoded(data_of(Hdf5Recorder().encode(value)), tmp_path).value
                assert same(back, value), value

    def test_long_texts_and_many_of_them_are_not_kept(self) -> None:
        structure = hdf5_file.Structure([], [])
        assert structure.text_of({"a": ["x" * hdf5_file._LONG], "b": 1}).endswith('"b":1}')
        assert list(structure._texts) == ["b"]
        for number in range(5 * hdf5_file._FEW):
            assert structure.text_of({f"{number}": number}) == f'{{"{number}":{number}}}'
        assert len(structure._texts) <= hdf5_file._FEW

    def test_few_structures_are_remembered(self) -> None:
        for size in range(2 * hdf5_file.REMEMBERED):
            Hdf5Recorder().encode(torch.ones(size))
        assert len(hdf5_file.STRUCTURES._kept) == hdf5_file.REMEMBERED

    def test_what_no_file_can_hold_is_named(self) -> None:
        with pytest.raises(CheckpointError, match=r"model\['a'\]\[0\] is a builtin_function"):
            Hdf5Recorder().encode({"a": [print]}, "model")

    def test_arguments_that_make_no_recorder(self) -> None:
        with pytest.raises(ConfigurationError, match="precision='double'") as caught:
            Hdf5Recorder(precision="double", compression="lz4")  # type: ignore[arg-type]
        assert len(caught.value.mistakes) == 2

    def test_zstd_without_its_package_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        data = data_of(Hdf5Recorder(compression="zstd").encode({"w": compressible(4000)}))
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(CheckpointError, match="pip install zstandard"):
            Hdf5Recorder(compression="zstd")
        with pytest.raises(CheckpointError, match="pip install zstandard"):
            decoded(data, tmp_path)

    def test_threads_that_write_at_once_do_not_disturb_each_other(self) -> None:
        values = [{"w": torch.full((size,), float(size)), "same": torch.ones(3)} for size in range(1, 30)] * 3
        expected = [data_of(Hdf5Recorder().encode(value)) for value in values]
        hdf5_file.STRUCTURES._kept.clear()
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda value: data_of(Hdf5Recorder().encode(value)), values)) == expected

    def test_it_is_a_recorder(self) -> None:
        assert isinstance(Hdf5Recorder(), Recorder)
        assert (
            Hdf5Recorder().exact and not Hdf5Recorder(precision="half").exact and not CompactRecorder().exact
        )


def values_for_viewers() -> dict[str, Tensor]:
    numbers = (compressible(6000) % 50).reshape(300, 20)
    made = {
        name: numbers.to(KNOWN[name])
        for name in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    }
    made |= {name: numbers.to(torch.int64).to(KNOWN[name]) for name in ("uint16", "uint32", "uint64")}
    made["bool"] = numbers % 2 == 0
    made["complex64"] = torch.complex(numbers.float(), -numbers.float())
    made["complex128"] = torch.complex(numbers.double(), -numbers.double())
    return made


class TestViewers:
    @pytest.mark.parametrize("recorder", [Hdf5Recorder(), Hdf5Recorder(compression="gzip")], ids=repr)
    def test_h5py_reads_every_value(self, recorder: Hdf5Recorder) -> None:
        value = values_for_viewers() | {"noise": any_bits(torch.uint8, (1 << 20,))}
        with opened_by_h5py(data_of(recorder.encode(value))) as file:
            for name, tensor in value.items():
                expected = (tensor.float() if name == "bfloat16" else tensor).numpy()
                found = file[name][()]
                assert found.shape == expected.shape and np.array_equal(found, expected), name
                if name != "bfloat16":
                    assert found.dtype == expected.dtype
            assert file["int64"].compression == recorder.compression

    def test_h5py_unpacks_gzip_in_several_chunks(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(hdf5_codecs, "LARGEST_CHUNK", 1000)
        value = values_for_viewers() | {"noise": any_bits(torch.uint8, (1 << 20,))}
        recorder = Hdf5Recorder(compression="gzip")
        data = data_of(recorder.encode(value))
        with opened_by_h5py(data) as file:
            assert file["int64"].id.get_num_chunks() > 10
            for name in ("int64", "float32", "uint8"):
                assert np.array_equal(file[name][()], value[name].numpy())
        assert same(decoded(data, tmp_path).value, value)

    def test_zstd_frames_are_what_zstandard_unpacks(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(hdf5_codecs, "LARGEST_CHUNK", 10_000)
        value = {"w": compressible(6000)}
        data = data_of(Hdf5Recorder(compression="zstd").encode(value))
        with opened_by_h5py(data) as file:
            found = file["w"]
            assert (found.attrs["codec"], found.attrs["torch_dtype"], found.attrs["shape"]) == (
                b"zstd",
                b"int64",
                b"6000",
            )
            stream = zstandard.ZstdDecompressor().stream_reader(found[()].tobytes(), read_across_frames=True)
            assert stream.read() == value["w"].numpy().tobytes()
        assert same(decoded(data, tmp_path).value, value)

    def test_types_that_hdf5_lacks_are_bytes_with_a_name(self) -> None:
        value = {"w": any_bits(torch.float8_e4m3fn, (2, 3)), "bits": any_bits(torch.bits16, ())}
        with opened_by_h5py(data_of(Hdf5Recorder().encode(value))) as file:
            assert file["w"].attrs["torch_dtype"] == b"float8_e4m3fn"
            assert file["w"][()].tobytes() == bytes(bytes_of(value["w"]))
            assert file["bits"].shape == (2,)

    def test_nesting_becomes_groups_and_names_cannot_break_out(self) -> None:
        one = [torch.ones(i + 1) for i in range(8)]
        value = {
            "layer.0.weight": one[0],
            "state": {0: {"exp_avg": one[1]}, "0": {"exp_avg": one[2]}},
            "a/b": one[3],
            ".": {"..": one[4]},
            "": one[5],
            "nul\0": one[6],
            "manifest": one[7],
            "long" * 100: torch.ones(9),
            "\u4e16\ud800": torch.ones(10),
        }
        with opened_by_h5py(data_of(Hdf5Recorder().encode(value))) as file:
            sizes = {}
            file.visititems(
                lambda name, item: sizes.update({name: item.size}) if hasattr(item, "size") else None
            )
            assert sizes["layer.0.weight"] == 1
            assert {sizes["state/0/exp_avg"], sizes["state/0/exp_avg~2"]} == {2, 3}
            assert (sizes["a%2Fb"], sizes["%2E/%2E%2E"], sizes["%"], sizes["nul%00"]) == (4, 5, 6, 7)
            assert sizes["manifest~2"] == 8
            assert sorted(size for name, size in sizes.items() if name != "manifest") == list(range(1, 11))

    @pytest.mark.parametrize("recorder", [*EXACT, CompactRecorder()], ids=repr)
    def test_the_tools_of_hdf5_read_it(
        self, recorder: Recorder, tmp_path: Path, hdf5_tool: Callable[..., str]
    ) -> None:
        path = tmp_path / "model-1.h5"
        value = {
            "model": values_for_viewers(),
            "f8": any_bits(torch.float8_e4m3fn, (3,)),
            "e": torch.empty(0),
        }
        path.write_bytes(data_of(recorder.encode(value)))
        assert "bfloat16" in hdf5_tool("h5ls", "-r", path)
        assert "manifest" in hdf5_tool("h5dump", path)

    def test_h5dump_shows_bfloat16_as_numbers(self, tmp_path: Path, hdf5_tool: Callable[..., str]) -> None:
        path = tmp_path / "model-1.h5"
        path.write_bytes(data_of(Hdf5Recorder().encode({"w": torch.tensor([1.5, -2, 0.1]).bfloat16()})))
        assert "(0): 1.5, -2, 0.100098" in hdf5_tool("h5dump", "-d", "/w", path)


class TestOutline:
    def test_it_shows_the_value_without_reading_tensors(self, tmp_path: Path) -> None:
        value = {
            "w": torch.ones(2, 3, dtype=torch.bfloat16),
            "lr": 0.1,
            "random": ("MT19937", np.arange(624, dtype=np.uint32), np.float64(1.0)),
            "sparse": torch.eye(4).to_sparse(),
            "parameter": nn.Parameter(torch.ones(2)),
        }
        data = bytearray(data_of(Hdf5Recorder().encode(value)))
        with opened_by_h5py(bytes(data)) as file:
            place = file["w"].id.get_offset()
        data[place] ^= 1
        with reading(bytes(data), tmp_path) as file:
            found = Hdf5Recorder().outline(file).value
            with pytest.raises(DamagedError, match="'w'"):
                Hdf5Recorder().decode(file)
        assert found["w"].is_meta and found["w"].dtype == torch.bfloat16 and found["w"].shape == (2, 3)
        assert found["lr"] == 0.1 and found["random"][0] == "MT19937"
        assert found["random"][1].shape == (624,) and found["sparse"].shape == (4, 4)
        assert found["parameter"].is_meta


class TestLoadingIntoLiveTensors:
    value: dict[str, Any] = {"a": {"w": torch.randn(30, 20)}, "b": torch.arange(5), "lr": 0.1}  # noqa: RUF012

    @pytest.mark.parametrize("recorder", EXACT, ids=repr)
    def test_their_memory_is_what_is_read_into(self, recorder: Hdf5Recorder, tmp_path: Path) -> None:
        live = {"a/w": torch.zeros(30, 20), "b": torch.zeros(5, dtype=torch.int64)}
        places = {name: tensor.data_ptr() for name, tensor in live.items()}
        with reading(data_of(recorder.encode(self.value)), tmp_path) as file:
            back = recorder.load_into(file, live)
        assert torch.equal(live["a/w"], self.value["a"]["w"]) and torch.equal(live["b"], self.value["b"])
        assert {name: tensor.data_ptr() for name, tensor in live.items()} == places
        assert back.value["a"]["w"].data_ptr() == places["a/w"] and back.value["lr"] == 0.1

    def test_parameters_views_and_other_layouts(self, tmp_path: Path) -> None:
        live = {"a/w": torch.zeros(20, 30).t(), "b": torch.zeros(10, dtype=torch.int64)[::2]}
        with reading(data_of(Hdf5Recorder().encode(self.value)), tmp_path) as file:
            Hdf5Recorder().load_into(file, live)
            parameter = nn.Parameter(torch.zeros(30, 20))
            Hdf5Recorder().load_into(file, {**live, "a/w": parameter})
        assert torch.equal(live["a/w"], self.value["a"]["w"]) and torch.equal(live["b"], self.value["b"])
        assert torch.equal(parameter, self.value["a"]["w"]) and parameter.is_leaf

    def test_tied_tensors_by_either_name_or_both(self, tmp_path: Path) -> None:
        weight = torch.randn(3)
        with reading(data_of(Hdf5Recorder().encode({"x": weight, "y": weight})), tmp_path) as file:
            for names in (["x"], ["y"], ["x", "y"]):
                live = {name: torch.zeros(3) for name in names}
                Hdf5Recorder().load_into(file, live)
                assert all(torch.equal(tensor, weight) for tensor in live.values())

    def test_half_precision_is_widened(self, tmp_path: Path) -> None:
        live = {"a/w": torch.zeros(30, 20), "b": torch.zeros(5, dtype=torch.int64)}
        with reading(data_of(CompactRecorder().encode(self.value)), tmp_path) as file:
            CompactRecorder().load_into(file, live)
        assert torch.equal(live["a/w"], self.value["a"]["w"].half().float())

    def test_all_that_does_not_fit_is_told_at_once_and_nothing_changed(self, tmp_path: Path) -> None:
        live = {"a/w": torch.zeros(20, 30), "c": torch.zeros(1)}
        with (
            reading(data_of(Hdf5Recorder().encode(self.value)), tmp_path) as file,
            pytest.raises(CheckpointError) as caught,
        ):
            Hdf5Recorder().load_into(file, live)
        message = str(caught.value)
        assert "a/w: saved with shape [30, 20], expected [20, 30]" in message
        assert "b: saved, but there is no such tensor" in message
        assert "c: expected, but it was not saved" in message
        assert not live["a/w"].any()
        live = {"a/w": torch.zeros(30, 20, dtype=torch.float64), "b": torch.zeros(5, dtype=torch.int64)}
        with (
            reading(data_of(Hdf5Recorder().encode(self.value)), tmp_path) as file,
            pytest.raises(CheckpointError, match="a/w: saved as float32, expected float64"),
        ):
            Hdf5Recorder().load_into(file, live)

    @pytest.mark.parametrize("threads", [1, 2])
    def test_a_change_of_any_byte_of_a_file_that_is_read_in_pieces_is_found(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int
    ) -> None:
        monkeypatch.setattr(hdf5_reading, "WORTH_A_THREAD", 0 if threads == 2 else 1 << 60)
        monkeypatch.setattr(hdf5_reading, "PIECE", 1000)
        sizes = [3000, 2, 2000, 250, 0, 250, 251, 1, 1, 1, 4000, 1000, 3]
        value = {f"w{number}": torch.randn(size) for number, size in enumerate(sizes)}
        data = bytearray(data_of(Hdf5Recorder().encode(value)))
        assert same(decoded(bytes(data), tmp_path).value, value)
        with opened_by_h5py(bytes(data)) as file:
            places = {name: file[name].id.get_offset() for name in value if len(value[name])}
        for name, place in places.items():
            data[place + value[name].nbytes - 1] ^= 1
            with pytest.raises(DamagedError, match=f"tensor '{name}'"):
                decoded(bytes(data), tmp_path)
            data[place + value[name].nbytes - 1] ^= 1
        for place in random.Random(0).sample(range(len(data)), 100):
            data[place] ^= 1
            with pytest.raises(DamagedError):
                decoded(bytes(data), tmp_path)
            data[place] ^= 1
        assert same(decoded(bytes(data), tmp_path).value, value)

    def test_of_two_threads_that_read_either_tells_of_damage_and_the_other_reads_no_further(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(hdf5_reading, "WORTH_A_THREAD", 0)
        monkeypatch.setattr(hdf5_reading, "PIECE", 1000)
        real, read = files.read_at, list[int]()

        def read_at(descriptor: int, buffers: Any, offset: int) -> int:
            read.append(offset)
            if threading.current_thread() is not threading.main_thread():
                raise OSError(errno.EIO, "Input/output error")
            time.sleep(0.002)
            return real(descriptor, buffers, offset)

        data = data_of(Hdf5Recorder().encode({f"w{number}": torch.randn(500) for number in range(200)}))
        monkeypatch.setattr(files, "read_at", read_at)
        with pytest.raises(OSError, match="Input/output"):
            decoded(data, tmp_path)
        assert len(read) < 20

"""A small file with very many values in it takes no more memory than twice its size and a constant: a list of
nothing is three bytes of a file and more than a hundred of memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
from hostile_mutations import (
    hdf5_document,
    index_document,
    json_bytes,
    messagepack_document,
    safetensors_document,
    sealed_hdf5,
    sealed_index,
    sealed_safetensors,
)
from hostile_run import Samples, put
from hostile_watched import SPARE, assert_harmless

from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.checkpoint.messagepack import NamedMpkGzRecorder
from notebook_learner.checkpoint.recorder import Recorder
from notebook_learner.checkpoint.safetensors import SafetensorsRecorder
from notebook_learner.errors import CheckpointError
from notebook_learner.store import budget, durable

OTHERS = (SafetensorsRecorder(), NamedMpkGzRecorder())
SHAPES: dict[str, str] = {"empty lists": "[]", "a key in each": '{"":0}'}
TEXT = 3 << 20
"""Bytes of the values: 130 MB of memory, were they made."""


def values(shape: str, size: int) -> str:
    """A JSON list of so many bytes."""
    return "[" + ",".join([shape] * (size // (len(shape) + 1))) + "]"


def in_hdf5(samples: Samples, tree: str) -> dict[str, bytes]:
    files, name = dict(samples["h5"]), "checkpoint/state-2-3.h5"
    document = hdf5_document(files[name])
    document["tree"] = json.loads(tree)
    files[name] = sealed_hdf5(files[name], document)
    return files


def in_safetensors(samples: Samples, tree: str) -> dict[str, bytes]:
    files, name = dict(samples["safetensors"]), "checkpoint/state-2-3.safetensors"
    document, ours, data = safetensors_document(files[name])
    ours["tree"] = json.loads(tree)
    files[name] = sealed_safetensors(document, ours, data)
    return files


def in_messagepack(samples: Samples, tree: str) -> dict[str, bytes]:
    files, name = dict(samples["mpk"]), "checkpoint/state-2-3.mpk.gz"
    document = messagepack_document(files[name])
    document["tree"] = json.loads(tree)
    packed = msgpack.packb(document, unicode_errors="surrogatepass")
    files[name] = gzip.compress(packed, 0)
    return files


def in_the_index(samples: Samples, tree: str) -> dict[str, bytes]:
    files = dict(samples["h5"])
    document = index_document(files["artifacts.h5"])
    document["clock"] = json.loads(tree)
    files["artifacts.h5"] = sealed_index(files["artifacts.h5"], json_bytes(document))
    return files


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("put_in", [in_hdf5, in_safetensors, in_messagepack, in_the_index])
@pytest.mark.rounds(2)
def test_very_many_values(
    put_in: Callable[[Samples, str], dict[str, bytes]], shape: str, samples: Samples, tmp_path: Path
) -> None:
    put(tmp_path / "run", put_in(samples, values(SHAPES[shape], TEXT)))
    assert_harmless(tmp_path / "run", 0, SPARE + budget.SPARE)


@pytest.mark.parametrize("put_in", [in_hdf5, in_safetensors, in_messagepack])
@pytest.mark.rounds(1)
def test_one_tensor_copied_very_often(
    put_in: Callable[[Samples, str], dict[str, bytes]], samples: Samples, tmp_path: Path
) -> None:
    """A few characters ask for five kilobytes, again and again."""
    document = hdf5_document(samples["h5"]["checkpoint/state-2-3.h5"])
    columns = document["tensors"]
    of_a_generator = columns["kinds"].index(["uint8", [5056]])
    number = columns["kind"].index(of_a_generator)
    copy = {"$quantized": "quint8", "values": {"$tensor": number}, "scale": 1.0, "zero_point": 0}
    put(tmp_path / "run", put_in(samples, json.dumps(document["tree"] | {"more": [copy] * 15_000})))
    assert_harmless(tmp_path / "run", 1)


@pytest.mark.parametrize(("count", "damaged"), [(40_000, 0), (350_000, 1)])
def test_very_many_tensors_without_a_value(
    count: int, damaged: int, samples: Samples, tmp_path: Path
) -> None:
    """In columns one takes a dozen characters, and its checksum 32."""
    files, name = dict(samples["h5"]), "checkpoint/state-2-3.h5"
    document = hdf5_document(files[name])
    columns = document["tensors"]
    columns["kind"] += [len(columns["kinds"])] * count
    columns["kinds"].append(["float32", [0]])
    columns["offset"] += [0] * count
    columns["name"] += [f"{number:x}" for number in range(count)]
    files[name] = sealed_hdf5(files[name], document)
    put(tmp_path / "run", files)
    assert_harmless(tmp_path / "run", damaged, SPARE + budget.SPARE)


@pytest.mark.parametrize("recorder", [Hdf5Recorder(), Hdf5Recorder(compression="gzip"), *OTHERS], ids=repr)
@pytest.mark.rounds(1)
def test_what_would_not_be_read_again_is_not_written(recorder: Recorder, tmp_path: Path) -> None:
    fits: dict[str, Any] = {"kept": {"order": [[] for _ in range(250_000)]}, "weight": torch.ones(3)}
    encoded = recorder.encode(fits)
    path = tmp_path / f"state-1.{recorder.suffix}"
    durable.write_new(path, encoded.pieces, encoded.size)
    with durable.opened(path) as file:
        assert recorder.decode(file).value["kept"] == fits["kept"]

    fits["kept"]["order"] += [[]] * 90_000
    with pytest.raises(
        CheckpointError,
        match=r"loaders holds .* \(340,000\) in loaders\['kept'\]\['order'\]; make that a tensor",
    ):
        recorder.encode(fits, "loaders")

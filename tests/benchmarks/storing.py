"""Saving and loading the bytes of a checkpoint, against torch.save, safetensors and a plain file.

Every save is durable: it ends once the disk has the bytes. Every load reads from the page cache into tensors
that exist already. *plain* is one piece of memory; *plain, each tensor* is the same written from and read
into the tensors themselves, a thousand a call, which is the least that a checkpoint costs without a copy.
*plain, a call each* is what the targets were set by: a view of each tensor's memory as torch makes one, a
`pwrite` for each when saving, and reads merged up to a megabyte when loading.
*notebook_learner, first* is a load before this process knows the structure of the file. One round does all of
them in turn, on files of the same bytes, and what counts is the median over rounds of the ratio to the plain
file within a round.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.store import durable, hdf5_manifest

Tensors = dict[str, Tensor]
Ways = dict[str, Callable[[], object]]
PIECE = 1 << 20
"""Bytes a call of the plain file's: the fastest on ext4, so it is no easy rival."""
BASES = ("plain", "plain, each tensor", "plain, a call each")
BUFFERS = 1000
"""Tensors a call of the plain file's that is written from them."""


def large() -> Tensors:
    """A model of 390 MB: 93 matrices of 1024 x 1024."""
    return {f"layer{i}.weight": torch.randn(1024, 1024) for i in range(93)}


def small() -> Tensors:
    """An Adam state of 19.3 MB in 2,001 tensors: a step and two moments for each of 667 parameters."""
    tensors: Tensors = {}
    for i in range(667):
        tensors[f"state.{i}.step"] = torch.tensor(float(i))
        tensors[f"state.{i}.exp_avg"] = torch.randn(54, 67)
        tensors[f"state.{i}.exp_avg_sq"] = torch.randn(54, 67)
    return tensors


def main(rounds: int) -> None:
    print(
        f"torch {torch.__version__}, h5py {h5py.__version__}, safetensors {safetensors.__version__}; medians "
        f"of {rounds} interleaved rounds; of wall time and its least, CPU time,\n"
        f"and the ratio of wall time to: {'; '.join(BASES)}"
    )
    for name, tensors in (("390 MB", large()), ("2,001 small", small())):
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            plain = memory(sum(tensor.nbytes for tensor in tensors.values()))
            report(f"save {name}", rounds, saves(folder, tensors, plain), folder)
            report(f"load {name}", rounds, loads(folder, tensors, plain), folder)


def report(what: str, rounds: int, ways: Ways, folder: Path) -> None:
    times: dict[str, list[float]] = {who: [] for who in ways}
    computed: dict[str, list[float]] = {who: [] for who in ways}
    for number in range(rounds + 1):
        for who in list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]:
            for path in folder.glob("*.new"):  # deleting the last file is not part of writing the next
                path.unlink()
            began, cpu = time.perf_counter(), time.process_time()
            ways[who]()
            if number:  # the first round warms up: imports, the image of the file, the page cache
                times[who].append(time.perf_counter() - began)
                computed[who].append(time.process_time() - cpu)
    for who, taken in times.items():
        wall, cpu = statistics.median(taken) * 1e3, statistics.median(computed[who]) * 1e3
        ratios = "".join(f"{ratio(taken, times[base]):8.2f}" for base in BASES)
        print(f"{what:18}{who:24}{wall:9.1f} ms{min(taken) * 1e3:9.1f} ms{cpu:9.1f} ms{ratios}", flush=True)


def ratio(taken: list[float], base: list[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(taken, base, strict=True))


def saves(folder: Path, tensors: Tensors, plain: memoryview) -> Ways:
    recorder = Hdf5Recorder()

    def ours() -> None:
        encoded = recorder.encode(tensors)
        durable.replace(folder / "ours.new", encoded.pieces, encoded.size)

    def by_torch() -> None:
        with open(folder / "torch.new", "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())

    def by_safetensors() -> None:
        safetensors.torch.save_file(tensors, folder / "safetensors.new")
        with open(folder / "safetensors.new", "rb") as file:
            os.fsync(file.fileno())

    def by_hand() -> None:
        with open(folder / "plain.new", "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, len(plain))
            for start in range(0, len(plain), PIECE):
                file.write(plain[start : start + PIECE])
            os.fsync(file.fileno())

    def by_tensor() -> None:
        buffers = [tensor.numpy() for tensor in tensors.values()]
        with open(folder / "tensors.new", "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, len(plain))
            place = 0
            for start in range(0, len(buffers), BUFFERS):
                place += os.pwritev(file.fileno(), buffers[start : start + BUFFERS], place)
            assert place == len(plain)
            os.fsync(file.fileno())

    def by_call() -> None:
        descriptor = os.open(folder / "calls.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        place = 0
        for tensor in tensors.values():
            place += os.pwrite(descriptor, bytes_as_torch_has_them(tensor), place)
        assert place == len(plain)
        os.fsync(descriptor)
        os.close(descriptor)

    return {
        "plain": by_hand,
        "plain, each tensor": by_tensor,
        "plain, a call each": by_call,
        "notebook_learner": ours,
        "safetensors": by_safetensors,
        "torch.save": by_torch,
    }


def loads(folder: Path, tensors: Tensors, plain: memoryview) -> Ways:
    recorder = Hdf5Recorder()
    encoded = recorder.encode(tensors)
    durable.write_new(folder / "ours", encoded.pieces, encoded.size)
    with durable.opened(folder / "ours") as file:
        live = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        recorder.load_into(file, live)
    torch.save(tensors, folder / "torch")
    safetensors.torch.save_file(tensors, folder / "safetensors")
    (folder / "plain").write_bytes(plain)
    into = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    view = memory(len(plain))

    def ours() -> None:
        with durable.opened(folder / "ours") as file:
            recorder.load_into(file, live)

    def put(loaded: Tensors) -> None:
        for name, tensor in loaded.items():
            into[name].copy_(tensor)

    def by_hand() -> None:
        with open(folder / "plain", "rb", buffering=0) as file:
            for start in range(0, len(plain), PIECE):
                file.readinto(view[start : start + PIECE])

    def by_tensor() -> None:
        buffers = [tensor.numpy() for tensor in into.values()]
        with open(folder / "plain", "rb", buffering=0) as file:
            place = 0
            for start in range(0, len(buffers), BUFFERS):
                place += os.preadv(file.fileno(), buffers[start : start + BUFFERS], place)
            assert place == len(plain)

    def by_call() -> None:
        with open(folder / "plain", "rb", buffering=0) as file:
            place, size, merged = 0, 0, list[memoryview]()
            for buffer in [bytes_as_torch_has_them(tensor) for tensor in into.values()]:
                merged.append(buffer)
                size += len(buffer)
                if size >= PIECE or len(merged) == BUFFERS:
                    place, size, merged = place + os.preadv(file.fileno(), merged, place), 0, []
            place += os.preadv(file.fileno(), merged, place) if merged else 0
            assert place == len(plain)

    def first() -> None:
        hdf5_manifest._CHECKED.clear()
        ours()

    return {
        "plain": by_hand,
        "plain, each tensor": by_tensor,
        "plain, a call each": by_call,
        "notebook_learner": ours,
        "notebook_learner, first": first,
        "safetensors": lambda: put(safetensors.torch.load_file(folder / "safetensors")),
        "torch.save": lambda: put(torch.load(folder / "torch", weights_only=True)),
    }


def bytes_as_torch_has_them(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous()
    flat = flat if flat.dim() else flat.reshape(1)
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")


def memory(size: int) -> memoryview:
    """Memory as tensors have it: torch asks for huge pages, which are filled in a third of the time."""
    return torch.zeros(size, dtype=torch.uint8).numpy().data

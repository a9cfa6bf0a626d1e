"""Checkpoints in HDF5: every HDF5 viewer opens them, and writing one is as fast as a plain write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, eq
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigurationError
from ..store import hdf5_file, hdf5_reading
from ..store.budget import TIMES
from ..store.durable import Reader
from ..store.hdf5_codecs import CODECS, require
from ..store.hdf5_columns import Entry
from ..store.hdf5_image import dataset_paths
from ..store.hdf5_manifest import Manifest, damaged, read_head, read_manifest
from ..store.tensors import DTYPES, are_direct, dtype_name
from ..store.tree import Malformed, outlined, pack, unpack
from .recorder import Decoded, Encoded

ROUNDED = ("float32", "float64")
"""The dtypes that are rounded."""
HALVES = ("float16", "bfloat16")
"""What they are rounded to: the first has 11 bits of precision, the second 8 and the range of float32."""
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Rounded:
    """How one tensor was rounded."""

    dtype: str
    """Its dtype before."""
    error: float
    """The largest relative error of its numbers: 0.0005 is one part in 2,000."""


def halved(tensor: Tensor) -> tuple[Tensor, Rounded] | None:
    """Round a tensor to half precision; None if it must stay as it is.

    >>> value, rounded = halved(torch.tensor([1.0, 0.1]))
    >>> value.dtype, f"{rounded.error:.5f}"
    (torch.float16, '0.00024')
    >>> halved(torch.tensor([1e5, 1e-8]))[0].dtype
    torch.bfloat16
    """
    name = dtype_name(tensor.dtype)
    if name not in ROUNDED or tensor.numel() < 2:
        return None
    for half in HALVES:
        rounded = tensor.to(DTYPES[half])
        error = _error(tensor, rounded)
        if error is not None:
            return rounded, Rounded(name, error)
    return None


def halved_all(
    tensors: Sequence[Tensor], names: Sequence[str], whole: Collection[int] = ()
) -> tuple[list[Tensor], dict[str, Rounded]]:
    """Round all tensors except those with the numbers `whole`; return them, and how each was rounded."""
    kept, done = [], {}
    for number, (tensor, name) in enumerate(zip(tensors, names, strict=True)):
        found = None if number in whole else halved(tensor)
        kept.append(tensor if found is None else found[0])
        if found is not None:
            done[name] = found[1]
    return kept, done


def lost(rounded: Mapping[str, Rounded]) -> str:
    """Say in one line what half precision has lost.

    >>> lost({"weight": Rounded("float32", 0.00024), "bias": Rounded("float32", 0.0)})
    '2 tensors in half precision; the largest relative error, 0.024 %, is in weight'
    """
    if not rounded:
        return "nothing was rounded"
    worst = max(rounded, key=lambda name: rounded[name].error)
    error = f"{100 * rounded[worst].error:.2g} %"
    if len(rounded) == 1:
        return f"1 tensor in half precision, {worst}; its largest relative error is {error}"
    return f"{len(rounded)} tensors in half precision; the largest relative error, {error}, is in {worst}"


def _error(before: Tensor, after: Tensor) -> float | None:
    """The largest relative error; None if a number became infinite or zero. It is computed in pieces: a
    comparison in one piece would take four times the tensor's memory."""
    worst = 0.0
    flat, rounded = before.reshape(-1), after.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        old, new = flat[start : start + _PIECE], rounded[start : start + _PIECE]
        again = new.to(old.dtype)
        counted = torch.isfinite(old) & (old != 0)
        if bool((counted & ((again == 0) | torch.isinf(again))).any()):
            return None
        error = ((again - old) / old).abs_()
        worst = max(worst, float(error.where(counted, 0.0).max()))
    return worst


class Hdf5Recorder:
    """Checkpoints as HDF5 files (`model-3.h5`): the default format.

    Every tensor is a dataset under the name it has in the state, and opens in h5py, h5web, h5dump and
    HDFView; `json.loads(file["manifest"][()])` has the rest. Reading a file needs no HDF5 library, runs no
    code from it and checks every byte of it.

    Args:
        precision: "full" keeps every bit. "half" rounds float32 and float64 tensors to 16 bits: half
            the size, good enough for evaluation, but training cannot go on from it. They are also read as 16
            bits; the model that they are loaded into widens them.
        compression: None, "gzip" (every HDF5 reader unpacks it) or "zstd" (faster and smaller; readers show
            the compressed bytes; needs `pip install zstandard`). Trained float32 weights shrink by a tenth
            at best, and saving takes many times as long. What would shrink below half is stored as it is,
            so that no file is a bomb.

    Without a Learner, `save` and `load` write and read one file:

    >>> import tempfile
    >>> import torch
    >>> from notebook_learner.checkpoint import load, save
    >>> value = {"weight": torch.ones(2, 3), "lr": 0.1}
    >>> load(save(value, tempfile.mkdtemp() + "/mine.h5", recorder=Hdf5Recorder(compression="gzip")))
    {'weight': tensor([[1., 1., 1.],
            [1., 1., 1.]]), 'lr': 0.1}
    """

    suffix = "h5"

    def __init__(
        self,
        *,
        precision: Literal["full", "half"] = "full",
        compression: Literal["zstd", "gzip"] | None = None,
    ) -> None:
        mistakes = []
        if precision not in ("full", "half"):
            mistakes.append(f"precision={precision!r} is neither 'full' nor 'half'")
        if compression not in (None, *CODECS):
            mistakes.append(f"compression={compression!r} is not None, 'gzip' or 'zstd'")
        if mistakes:
            raise ConfigurationError(mistakes, "this recorder cannot be made")
        if compression is not None:
            require(compression)
        self.precision = precision
        self.compression = compression
        self.exact = precision == "full"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(precision={self.precision!r}, compression={self.compression!r})"

    def encode(self, value: Any, /, what: str = "state") -> Encoded:
        """Encode a nested value as the bytes of a file; contiguous tensors on the host are not copied.

        Raises:
            CheckpointError: it holds a value that no file can hold; the message names its place in `what`.
        """
        packed, rounded = pack(value, what), dict[str, Any]()
        if self.precision == "half":
            paths = dataset_paths(packed.names, packed.also)
            names = [where[0] for where in paths]
            packed.tensors, done = halved_all(packed.tensors, names, packed.arrays)
            rounded = {name: [one.dtype, one.error] for name, one in done.items()}
        if self.compression is None:
            structure = hdf5_file.STRUCTURES.find(packed.names, packed.also, packed.tensors)
            made = hdf5_file.written(structure, packed.tensors, packed.tree, rounded, what)
        else:
            paths = dataset_paths(packed.names, packed.also)
            made = hdf5_file.written_compressed(paths, packed, rounded, self.compression, what)
        return Encoded(made.pieces, made.size, made.digest)

    def decode(self, file: Reader, /) -> Decoded:
        """Decode the value, after every byte of the file was checked. Tensors in half precision come as they
        are stored, in 16 bits; in a model they take its dtype.

        Raises:
            DamagedError: the file is damaged or not a checkpoint; nothing of it was used.
        """
        manifest = read_manifest(file)
        _rounded(file, manifest)
        tensors = hdf5_reading.empty_tensors(manifest)
        hdf5_reading.read_into(file, manifest, tensors)
        return _decoded(file, manifest, manifest.tree, tensors, TIMES * file.size)

    def outline(self, file: Reader, /) -> Decoded:
        """Decode the value with empty tensors (on the "meta" device) instead of the real ones, also for
        arrays and sparse tensors. Reads only the manifest."""
        manifest = read_manifest(file)
        _rounded(file, manifest)
        tensors = hdf5_reading.empty_tensors(manifest, "meta")
        try:
            tree = outlined(manifest.tree, tensors)
        except (Malformed, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(file, f"its tree is malformed: {error}") from error
        return _decoded(file, manifest, tree, tensors)

    def head(self, file: Reader, before: str, /) -> Decoded | None:
        """Decode only the entries of a dict before a key, in a tenth of the time of `outline`; None if the
        dict has no such key, or has tensors before it."""
        found = read_head(file, before)
        if found is None:
            return None
        tree, digest, plain = found
        try:
            return Decoded(tree if plain else unpack(tree, []), digest)
        except Malformed:
            return None  # `outline` says what is wrong

    def load_into(self, file: Reader, into: Mapping[str, Tensor], /) -> Decoded:
        """Read the tensors of a file straight into live ones, by the names of their datasets
        ("encoder.weight", "state/0/exp_avg"), and return the value with them. A contiguous tensor on the
        host is filled without a copy; another layout, another device and half precision cost one copy.

        Raises:
            CheckpointError: names, shapes or dtypes do not fit, all of them in one message; nothing changed.
            DamagedError: as in `decode`. If a tensor in the file is damaged, the live tensors may hold a
                part of the file: load another checkpoint into them.
        """
        manifest = read_manifest(file)
        usual = _matched_at_once(manifest, into)
        if usual is not None:
            hdf5_reading.read_into(file, manifest, usual)
            return _decoded(file, manifest, manifest.tree, _all_plain(usual))
        rounded = _rounded(file, manifest)
        live = _matched(file, manifest, into, rounded)
        direct = [
            tensor if _is_direct(entry, tensor) else torch.empty(entry.shape, dtype=entry.dtype)
            for entry, (tensor, *_) in zip(manifest.tensors, live, strict=True)
        ]
        hdf5_reading.read_into(file, manifest, direct)
        with torch.no_grad():
            for source, targets in zip(direct, live, strict=True):
                if len(targets) == 1 and targets[0] is source:
                    continue
                for target in targets:
                    if target is not source:
                        target.copy_(source)
        return _decoded(file, manifest, manifest.tree, [_plain(targets[0]) for targets in live])

    def lost(self, file: Reader, /) -> str:
        """Say in one line what this file has lost by half precision."""
        return lost(_rounded(file, read_manifest(file)))


class CompactRecorder(Hdf5Recorder):
    """Checkpoints as the smallest HDF5 files: half precision and gzip, for evaluating and sharing.

    Every HDF5 reader unpacks gzip. Training cannot go on from these files.

    >>> CompactRecorder().exact
    False
    """

    def __init__(self) -> None:
        super().__init__(precision="half", compression="gzip")

    def __repr__(self) -> str:
        return "CompactRecorder()"


def _decoded(
    file: Reader, manifest: Manifest, tree: Any, tensors: list[Tensor], room: int | None = None
) -> Decoded:
    try:
        return Decoded(unpack(tree, tensors, room), manifest.digest)
    except Malformed as error:
        raise damaged(file, f"its tree is malformed: {error}") from error


def _rounded(file: Reader, manifest: Manifest) -> dict[str, Rounded]:
    """How each tensor was rounded, after a check."""
    if not manifest.rounded:
        return {}
    by_name = {entry.name: entry for entry in manifest.tensors}
    found = {}
    for name, item in manifest.rounded.items():
        entry = by_name.get(name)
        if entry is None or dtype_name(entry.dtype) not in HALVES:
            raise damaged(file, f"{name[:200]!r} is no tensor in half precision")
        if not isinstance(item, list) or len(item) != 2 or item[0] not in ROUNDED:
            raise damaged(file, f"{name[:200]!r} was rounded from no known dtype")
        if type(item[1]) not in (float, int):
            raise damaged(file, f"the error of {name[:200]!r} is no number")
        found[name] = Rounded(item[0], float(item[1]))
    return found


def _matched(
    file: Reader, manifest: Manifest, into: Mapping[str, Tensor], rounded: Mapping[str, Rounded]
) -> list[list[Tensor]]:
    """The live tensors for each of the file's, after all of them were compared."""
    mistakes, live, named = [], [], set[str]()
    for entry in manifest.tensors:
        if not entry.also and entry.name not in rounded and _fits(into.get(entry.name), entry):
            named.add(entry.name)
            live.append([into[entry.name]])
            continue
        names = [name for name in (entry.name, *entry.also) if name in into]
        named.update(names)
        live.append([into[name] for name in names])
        if not names:
            mistakes.append(f"{entry.name}: saved, but there is no such tensor to load into")
        expected = rounded[entry.name].dtype if entry.name in rounded else dtype_name(entry.dtype)
        for name in names:
            tensor = into[name]
            if tensor.shape != entry.shape:
                mistakes.append(
                    f"{name}: saved with shape {list(entry.shape)}, expected {list(tensor.shape)}"
                )
            if dtype_name(tensor.dtype) != expected:
                mistakes.append(f"{name}: saved as {expected}, expected {dtype_name(tensor.dtype)}")
    mistakes.extend(f"{name}: expected, but it was not saved" for name in into if name not in named)
    if mistakes:
        raise CheckpointError(
            "\n".join([f"{file.path} does not fit:", *(f"  - {line}" for line in mistakes)])
        )
    return live


def _matched_at_once(manifest: Manifest, into: Mapping[str, Tensor]) -> list[Tensor] | None:
    """The live tensors in the file's order if each can be filled without a copy; None if one of them cannot,
    or does not fit: `_matched` says which."""
    listed = manifest.structure.listed
    if not listed.plain or manifest.rounded or len(into) != len(listed.names):
        return None
    live = [into.get(name) for name in listed.names]
    if not _USUAL_KINDS.issuperset(map(type, live)):
        return None
    told = map(_TOLD, live)
    alike = all(map(eq, told, zip(listed.shapes, listed.dtypes, strict=True)))
    return cast("list[Tensor]", live) if alike and are_direct(cast("list[Tensor]", live)) else None


_TOLD = attrgetter("shape", "dtype")
_USUAL_KINDS = {Tensor, nn.Parameter}


def _fits(tensor: Tensor | None, entry: Entry) -> bool:
    return tensor is not None and tensor.shape == entry.shape and tensor.dtype is entry.dtype


def _all_plain(tensors: list[Tensor]) -> list[Tensor]:
    if set(map(type, tensors)) == {Tensor} and not any(map(attrgetter("requires_grad"), tensors)):
        return tensors
    return list(map(_plain, tensors))


def _plain(tensor: Tensor) -> Tensor:
    """The same memory as a plain tensor without gradient."""
    return tensor if type(tensor) is Tensor and not tensor.requires_grad else tensor.detach()


def _is_direct(entry: Entry, tensor: Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.dtype == entry.dtype
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )

"""Nested state as typed JSON and a list of tensors, and back to the same values and types.

JSON holds these types directly: None, bool, int, str, lists, dicts with plain string keys, and finite floats
in the shortest form that is read back to the same bits. Every other value is an object with one key that
begins with `$`:

    {"$float": "nan"}                 nan, inf, -inf
    {"$int": "-0x1f..."}              an integer of more than 64 bits
    {"$complex": [re, im]}
    {"$bytes": "aGVsbG8="}            base64
    {"$tuple": [...]}  {"$set": [...]}  {"$frozenset": [...]}  {"$size": [2, 3]}
    {"$dict": [[key, value], ...]}    other keys than strings, or a key that begins with `$`
    {"$ordered": [[k, v], ...]}  {"$counter": [[k, v], ...]}
    {"$tensor": 7}                    tensor number 7; the same number twice is one tensor in two places
    {"$tensor": 7, "order": [0, 2, 3, 1]}   laid out in memory in this order of dimensions
    {"$parameter": {...}, "grad": true}     an nn.Parameter around a tensor
    {"$array": 7}  {"$scalar": 7}     the same as a NumPy array, and as a NumPy scalar
    {"$sparse": "coo", "size": [...], "members": [...], "coalesced": true}
    {"$quantized": "qint8", "values": {...}, "scale": ..., "zero_point": ..., "axis": ...}
    {"$dtype": "float32"}  {"$device": "cuda:0"}

A tree cannot name code, so reading it runs no code.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import CheckpointError, a_kind
from .tensors import (
    DTYPES,
    are_apart,
    are_direct,
    dtype_name,
    identity_of,
    is_plain,
    is_ready,
    laid_out,
    on_host,
    ordering_of,
)

DEEPEST = 100
"""A deeper value contains itself, or comes from a file that was made to exhaust the stack."""

_LONGEST = 1 << 63
_FEW = 1000
"""The most keys of a dict that may share a hash: numbers of any length sometimes do."""
_HEX = re.compile(r"-?0x[0-9a-f]+")

Json = Any


class Malformed(ValueError):
    """A tree that `pack` cannot have made."""


@dataclass
class Packed:
    """A nested value: its tree, and its tensors as contiguous host memory."""

    tree: Json = None
    tensors: list[Tensor] = field(default_factory=list)
    names: list[tuple[str, ...]] = field(default_factory=list)
    """The first place of each tensor in the value, as keys and indices."""
    also: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    """The further places of tensors."""
    arrays: set[int] = field(default_factory=set)
    """The tensors that must keep their dtype: NumPy has no bfloat16, and the scales of a quantized tensor
    must not change."""
    copied: set[int] = field(default_factory=set)
    """The tensors that a reader goes through once more: for another order, a quantized or a sparse tensor."""


def pack(value: Any, what: str = "state") -> Packed:
    """Take a value apart. A value that a file cannot hold is an error that names its place.

    >>> packed = pack({"lr": 0.1, "betas": (0.9, 0.999), "weight": torch.ones(2)})
    >>> packed.tree
    {'lr': 0.1, 'betas': {'$tuple': [0.9, 0.999]}, 'weight': {'$tensor': 0}}
    >>> pack({"lr": [print]}, "scheduler")
    Traceback (most recent call last):
        ...
    notebook_learner.errors.CheckpointError: scheduler['lr'][0] is a builtin_function_or_method, which a \
checkpoint cannot hold; use tensors, arrays, numbers, strings, bytes, lists, tuples and dicts
    """
    quick = _packed_quickly(value, what)
    if quick is not None:
        return quick
    packer = _Packer(what)
    packer.packed.tree = packer.node(value, ())
    return packer.packed


def _packed_quickly(value: Any, what: str) -> Packed | None:
    """`pack` in a fifth of the time for a value whose tensors can all be stored as they are, and occur only
    once, as in nearly every state. None for any other value."""
    packer = _QuickPacker(what)
    try:
        packer.packed.tree = packer.node(value, ())
        tensors = packer.packed.tensors
        usual = (
            are_direct(tensors) and not any(map(attrgetter("requires_grad"), tensors)) and are_apart(tensors)
        )
    except (_NotQuick, RuntimeError):  # the latter if torch's checks cannot answer
        return None
    return packer.packed if usual else None


def unpack(tree: Json, tensors: Sequence[Tensor], room: int | None = None) -> Any:
    """Put a value together again. A tree that `pack` cannot have made raises Malformed.

    Args:
        tree: what `pack` made of it.
        tensors: the tensors that it names.
        room: the most bytes that they may take, including tensors that are gone through once more (for
            another order, a quantized or a sparse tensor); None for no limit.

    >>> unpack({"betas": {"$tuple": [0.9, 0.999]}, "weight": {"$tensor": 0}}, [torch.ones(2)])
    {'betas': (0.9, 0.999), 'weight': tensor([1., 1.])}
    """
    try:
        return _Unpacker(tensors, room).value(tree, 0)
    except (
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        OverflowError,
        RuntimeError,
        AttributeError,
    ) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed(f"{type(error).__name__}: {error}") from error


# To a tree -------------------------------------------------------------------------------------------


class _Packer:
    def __init__(self, what: str) -> None:
        self.what = what
        self.packed = Packed()
        self._known: dict[tuple[object, ...], int] = {}
        self._alive: list[Tensor] = []  # an address may be used again once its tensor is gone

    def node(self, value: Any, path: tuple[Any, ...]) -> Json:
        if len(path) > DEEPEST:
            raise CheckpointError(
                f"{self._place(path[:4])}... is nested more than {DEEPEST} deep; does it contain itself?"
            )
        kind = type(value)
        if value is None or kind is str or kind is bool:
            return value
        if (
            kind is int
        ):  # other languages, and Python above 4300 digits, cannot read longer integers from JSON
            return value if -_LONGEST <= value < 2 * _LONGEST else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is Tensor and self._ready(value):
            return {"$tensor": self._number(value, value, path)}
        if kind is list:
            return [self.node(item, (*path, i)) for i, item in enumerate(value)]
        if kind is dict:
            return self._dict(value, path)
        if isinstance(value, Tensor):
            return self._tensor_node(value, path)
        maker = _NODES.get(kind)
        if maker is not None:
            return maker(self, value, path)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._numpy(value, path)
        raise self._refused(path, f"is {a_kind(kind)}")

    def items(self, values: Any, path: tuple[Any, ...]) -> list[Json]:
        return [self.node(item, (*path, i)) for i, item in enumerate(values)]

    def unordered(self, values: Any, path: tuple[Any, ...]) -> list[Json]:
        """The items in a fixed order, so that equal sets make equal files in every process."""
        return sorted(self.items(values, path), key=json.dumps)

    def pairs(self, values: Any, path: tuple[Any, ...]) -> list[Json]:
        return [[self.node(key, (*path, key)), self.node(item, (*path, key))] for key, item in values.items()]

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Json:
        for key in value:
            if type(key) is not str or key.startswith("$"):
                return {"$dict": self.pairs(value, path)}
        return {key: self.node(item, (*path, key)) for key, item in value.items()}

    def _ready(self, value: Tensor) -> bool:
        return is_ready(value)

    def _tensor_node(self, value: Tensor, path: tuple[Any, ...]) -> Json:
        if type(value) is nn.Parameter:
            return {"$parameter": self._tensor_node(value.data, path), "grad": value.requires_grad}
        if type(value) is not Tensor:
            raise self._refused(path, f"is {a_kind(value)}, a tensor of a kind of its own,")
        if is_plain(value):
            return self._plain(value, path)
        if value.layout != torch.strided and not value.is_meta and not value.is_nested:
            return self._sparse(value, path)
        if value.is_quantized:
            return self._quantized(value, path)
        raise self._refused(path, "is a tensor on the meta device" if value.is_meta else "is a nested tensor")

    def _plain(self, value: Tensor, path: tuple[Any, ...]) -> Json:
        index = self._number(value, None, path)
        order = ordering_of(value)
        if order is None:
            return {"$tensor": index}
        self.packed.copied.add(index)
        return {"$tensor": index, "order": order}

    def _number(self, value: Tensor, host: Tensor | None, path: tuple[Any, ...]) -> int:
        """The number of this tensor in the file; `host` is the tensor in host memory, if it is known."""
        identity = identity_of(value)
        index = self._known.get(identity)
        keys = tuple(map(str, path))
        if index is None:
            index = self._known[identity] = len(self.packed.tensors)
            self._alive.append(value)
            self.packed.tensors.append(on_host(value) if host is None else host)
            self.packed.names.append(keys)
        else:
            self.packed.also.append((index, keys))
        return index

    def _sparse(self, value: Tensor, path: tuple[Any, ...]) -> Json:
        kind = _SPARSE_KINDS[value.layout]
        members = (
            [value._indices(), value._values()]
            if kind == "coo"
            else [getattr(value, name)() for name in _COMPRESSED[kind]]
        )
        nodes = [self._plain(member, (*path, i)) for i, member in enumerate(members)]
        self.packed.copied |= {node["$tensor"] for node in nodes}
        return {
            "$sparse": kind,
            "size": list(value.shape),
            "members": nodes,
            "coalesced": kind == "coo" and value.is_coalesced(),
        }

    def _quantized(self, value: Tensor, path: tuple[Any, ...]) -> Json:
        node = {"$quantized": dtype_name(value.dtype), "values": self._plain(value.int_repr(), path)}
        self.packed.copied.add(node["values"]["$tensor"])
        if value.qscheme() == torch.per_tensor_affine:
            return {**node, "scale": value.q_scale(), "zero_point": value.q_zero_point()}
        if value.qscheme() == torch.per_channel_affine:
            scale = self._plain(value.q_per_channel_scales(), (*path, "scale"))
            zero = self._plain(value.q_per_channel_zero_points(), (*path, "zero_point"))
            self.packed.arrays |= {scale["$tensor"], zero["$tensor"]}
            return {**node, "scale": scale, "zero_point": zero, "axis": value.q_per_channel_axis()}
        raise self._refused(path, f"is a tensor quantized by {value.qscheme()}")

    def _numpy(self, value: Any, path: tuple[Any, ...]) -> Json:
        array = np.asarray(value)
        plain = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
        try:
            tensor = torch.from_numpy(plain.reshape(array.shape))
        except TypeError:
            raise self._refused(path, f"is a NumPy {array.dtype} array") from None
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise self._refused(path, f"is {a_kind(value)}")
        kind = "$array" if isinstance(value, np.ndarray) else "$scalar"
        index = self._plain(tensor, path)["$tensor"]
        self.packed.arrays.add(index)
        return {kind: index}

    def _refused(self, path: tuple[Any, ...], what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._place(path)} {what}, which a checkpoint cannot hold; use tensors, arrays, numbers, "
            "strings, bytes, lists, tuples and dicts".replace(",,", ",")
        )

    def _place(self, path: tuple[Any, ...]) -> str:
        return self.what + "".join(f"[{key!r}]" for key in path)


class _NotQuick(Exception):
    """A value has a tensor that needs a check of its own."""


class _QuickPacker(_Packer):
    """Takes every tensor as it is. Afterwards one check of all tensors says whether that was right."""

    def _ready(self, value: Tensor) -> bool:
        return True

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Json:
        if set(map(type, value.values())) != _ONLY_TENSORS or set(map(type, value)) != _ONLY_TEXTS:
            return super()._dict(value, path)
        if any([key[:1] == "$" for key in value]):
            return super()._dict(value, path)
        start, place = len(self.packed.tensors), tuple(map(str, path))
        self.packed.tensors.extend(value.values())
        self.packed.names.extend([(*place, key) for key in value])
        return {key: {"$tensor": index} for index, key in enumerate(value, start)}

    def _tensor_node(self, value: Tensor, path: tuple[Any, ...]) -> Json:
        raise _NotQuick

    def _number(self, value: Tensor, host: Tensor | None, path: tuple[Any, ...]) -> int:
        self.packed.tensors.append(value)
        self.packed.names.append(tuple(map(str, path)))
        return len(self.packed.tensors) - 1


_ONLY_TENSORS, _ONLY_TEXTS = {Tensor}, {str}
_Maker = Callable[[_Packer, Any, tuple[Any, ...]], Json]
_NODES: dict[type, _Maker] = {
    complex: lambda p, v, path: {"$complex": [p.node(v.real, path), p.node(v.imag, path)]},
    bytes: lambda p, v, path: {"$bytes": base64.b64encode(v).decode()},
    tuple: lambda p, v, path: {"$tuple": p.items(v, path)},
    set: lambda p, v, path: {"$set": p.unordered(v, path)},
    frozenset: lambda p, v, path: {"$frozenset": p.unordered(v, path)},
    torch.Size: lambda p, v, path: {"$size": list(v)},
    OrderedDict: lambda p, v, path: {"$ordered": p.pairs(v, path)},
    Counter: lambda p, v, path: {"$counter": p.pairs(v, path)},
    torch.dtype: lambda p, v, path: {"$dtype": dtype_name(v)},
    torch.device: lambda p, v, path: {"$device": str(v)},
}
_SPARSE_KINDS = {
    torch.sparse_coo: "coo",
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_bsr: "bsr",
    torch.sparse_bsc: "bsc",
}
_COMPRESSED = {
    "csr": ("crow_indices", "col_indices", "values"),
    "csc": ("ccol_indices", "row_indices", "values"),
    "bsr": ("crow_indices", "col_indices", "values"),
    "bsc": ("ccol_indices", "row_indices", "values"),
}


# And back --------------------------------------------------------------------------------------------


class _Unpacker:
    def __init__(self, tensors: Sequence[Tensor], room: int | None) -> None:
        self.tensors = tensors
        self._room = room
        self._left: int | None = None
        self._laid_out: dict[int, tuple[list[int], Tensor]] = {}

    def value(self, node: Json, depth: int) -> Any:
        if depth > 2 * DEEPEST:
            raise Malformed("it is nested too deep")
        if isinstance(node, list):
            return [self.value(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        kind = next(iter(node), "")
        if not kind.startswith("$"):
            numbers = _numbers(node)
            if numbers is not None and min(numbers) >= 0 and max(numbers) < len(self.tensors):
                return dict(zip(node, map(self.tensors.__getitem__, numbers), strict=True))
            return {key: self.value(item, depth + 1) for key, item in node.items()}
        maker = _VALUES.get(kind)
        if maker is None:
            raise Malformed(f"it holds an unknown kind of value, {kind[:40]!r}")
        return maker(self, node, depth + 1)

    def items(self, node: Json, depth: int) -> list[Any]:
        if not isinstance(node, list):
            raise Malformed("a list is missing")
        return [self.value(item, depth) for item in node]

    def members(self, node: Json, depth: int) -> list[Any]:
        """The items of a set."""
        items = self.items(node, depth)
        _require_spread(items)
        return items

    def pairs(self, node: Json, depth: int) -> list[tuple[Any, Any]]:
        """The items of a dict."""
        pairs = [(self.value(key, depth), self.value(item, depth)) for key, item in node]
        _require_spread([key for key, _ in pairs])
        return pairs

    def plain(self, node: Json) -> Tensor:
        tensor = self._at(node["$tensor"])
        order = node.get("order")
        if order is None:
            return tensor
        if sorted(order) != list(range(tensor.dim())):
            raise Malformed("an order of dimensions does not fit its tensor")
        known = self._laid_out.get(node["$tensor"])
        if known is None:
            self._again(tensor)
            known = self._laid_out[node["$tensor"]] = (order, laid_out(tensor, order))
        if known[0] != order:  # each order would be a copy, whose memory the file's size does not justify
            raise Malformed("one tensor in two orders of dimensions")
        return known[1]

    def array(self, index: Json) -> Any:
        return self._at(index).numpy()

    def parameter(self, node: Json, depth: int) -> nn.Parameter:
        return nn.Parameter(self.plain(node["$parameter"]), requires_grad=bool(node["grad"]))

    def sparse(self, node: Json) -> Tensor:
        members = [self.plain(member) for member in node["members"]]
        for member in members:
            self._again(member)
        size = [int(length) for length in node["size"]]
        if node["$sparse"] == "coo":
            indices, values = members
            made = torch.sparse_coo_tensor(indices, values, size, check_invariants=True)
            return made._coalesced_(True) if node["coalesced"] is True else made
        layout = {kind: layout for layout, kind in _SPARSE_KINDS.items()}[node["$sparse"]]
        compressed, plain, values = members
        return torch.sparse_compressed_tensor(
            compressed, plain, values, size, layout=layout, check_invariants=True
        )

    def quantized(self, node: Json) -> Tensor:
        values, scale, zero = self.plain(node["values"]), node["scale"], node["zero_point"]
        self._again(values)
        if "axis" not in node:
            return torch._make_per_tensor_quantized_tensor(values, scale, zero)
        return torch._make_per_channel_quantized_tensor(
            values, self.plain(scale), self.plain(zero), node["axis"]
        )

    def _again(self, tensor: Tensor) -> None:
        """Count a tensor that is copied, or of which every number is checked: a few bytes of a tree may ask
        for that many times."""
        if self._room is None:
            return
        if self._left is None:
            self._left = self._room - sum(map(_NBYTES, self.tensors))
        self._left -= tensor.nbytes
        if self._left < 0:
            raise Malformed("it asks for more copies of its tensors than its size justifies")

    def _at(self, index: Json) -> Tensor:
        if type(index) is not int or not 0 <= index < len(self.tensors):
            raise Malformed("it speaks of a tensor that is not there")
        return self.tensors[index]


_NBYTES = attrgetter("nbytes")


def _require_spread(keys: list[Any]) -> None:
    """Raise if many keys share their hash. A stranger can choose such integers, and the time for a dict of
    them grows with the square of their number."""
    if len(keys) > _FEW and max(Counter(map(hash, keys)).values()) > _FEW:
        raise Malformed("its keys share their hashes, so that a dict of them would take for ever")


def _numbers(node: dict[str, Json]) -> list[int] | None:
    """The numbers of the tensors in an object that holds only tensors."""
    items = node.values()
    if not node or set(map(type, items)) != {dict} or set(map(len, items)) != {1}:
        return None
    numbers = [item.get("$tensor") for item in items]
    return numbers if set(map(type, numbers)) == {int} else None


def _decoded(text: Json) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Malformed(f"bytes that are no base64: {error}") from None


def _whole(text: Json) -> int:
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise Malformed("an integer that is not hexadecimal")
    return int(text, 16)  # takes time in proportion to its length, unlike a decimal one


def _float(text: Json) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise Malformed("a $float that is not nan, inf or -inf")
    return float(text)


_VALUES: dict[str, Callable[[_Unpacker, Json, int], Any]] = {
    "$float": lambda u, n, depth: _float(n["$float"]),
    "$int": lambda u, n, depth: _whole(n["$int"]),
    "$complex": lambda u, n, depth: complex(*u.items(n["$complex"], depth)),
    "$bytes": lambda u, n, depth: _decoded(n["$bytes"]),
    "$tuple": lambda u, n, depth: tuple(u.items(n["$tuple"], depth)),
    "$set": lambda u, n, depth: set(u.members(n["$set"], depth)),
    "$frozenset": lambda u, n, depth: frozenset(u.members(n["$frozenset"], depth)),
    "$size": lambda u, n, depth: torch.Size(n["$size"]),
    "$dict": lambda u, n, depth: dict(u.pairs(n["$dict"], depth)),
    "$ordered": lambda u, n, depth: OrderedDict(u.pairs(n["$ordered"], depth)),
    "$counter": lambda u, n, depth: Counter(dict(u.pairs(n["$counter"], depth))),
    "$dtype": lambda u, n, depth: DTYPES[n["$dtype"]],
    "$device": lambda u, n, depth: torch.device(n["$device"]),
    "$tensor": lambda u, n, depth: u.plain(n),
    "$array": lambda u, n, depth: u.array(n["$array"]),
    "$scalar": lambda u, n, depth: u.array(n["$scalar"])[()],
    "$parameter": lambda u, n, depth: u.parameter(n, depth),
    "$sparse": lambda u, n, depth: u.sparse(n),
    "$quantized": lambda u, n, depth: u.quantized(n),
}


# Without the values ----------------------------------------------------------------------------------


def outlined(tree: Json, tensors: list[Tensor], depth: int = 0) -> Json:
    """A tree with a plain tensor in place of each array and sparse or quantized tensor, which cannot be
    made without values. Their tensors are added to the list."""
    if depth > 2 * DEEPEST:
        raise Malformed("it is nested too deep")
    if isinstance(tree, list):
        return [outlined(item, tensors, depth + 1) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next(iter(tree), "")
    if kind in ("$array", "$scalar"):
        return {"$tensor": tree[kind]}
    if kind == "$quantized":
        return {"$tensor": tree["values"]["$tensor"]}
    if kind == "$sparse":
        values = tensors[tree["members"][-1]["$tensor"]]
        tensors.append(torch.empty(tree["size"], dtype=values.dtype, device="meta"))
        return {"$tensor": len(tensors) - 1}
    return {key: outlined(item, tensors, depth + 1) for key, item in tree.items()}

"""Ways to damage a run: blind ones, and those of an attacker who puts all checksums right again."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
from hostile_run import Files
from xxhash import xxh3_128

from notebook_learner.errors import DamagedError
from notebook_learner.store import durable
from notebook_learner.store.hdf5_image import USER_BLOCK
from notebook_learner.store.hdf5_manifest import header, read_manifest

Json = Any


def digest(*parts: bytes | memoryview) -> str:
    state = xxh3_128()
    for part in parts:
        state.update(part)
    return str(state.hexdigest())


# Blind -----------------------------------------------------------------------------------------------


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def burst(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice((1, 4, 16, 300))
    return data[:start] + chance.randbytes(len(data[start : start + size])) + data[start + size :]


def cut_short(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.choice((0, chance.randrange(len(data)), chance.randrange(min(600, len(data)))))]


def lengthened(data: bytes, chance: random.Random) -> bytes:
    start = chance.choice((len(data), chance.randrange(len(data))))
    return data[:start] + chance.randbytes(chance.choice((1, 7, 512))) + data[start:]


def zeroed(data: bytes, chance: random.Random) -> bytes:
    start, size = chance.randrange(len(data)), chance.choice((1, 16, 512, 4096))
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]


def moved(data: bytes, chance: random.Random) -> bytes:
    """A stretch copied over another one."""
    size = chance.choice((4, 8, 64))
    one, other = chance.randrange(len(data)), chance.randrange(len(data))
    piece = data[one : one + size]
    return data[:other] + piece + data[other + len(piece) :]


BLIND: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flipped,
    flipped,
    burst,
    cut_short,
    lengthened,
    zeroed,
    moved,
)


def blind(files: Files, chance: random.Random) -> Files:
    """One file or two damaged, lost, or in another's place."""
    names = sorted(files)
    changed = dict(files)
    name = chance.choice(names)
    kind = chance.randrange(12)
    if kind == 0:
        del changed[name]
    elif kind == 1:
        other = chance.choice(names)
        changed[name], changed[other] = changed[other], changed[name]
    else:
        for _ in range(chance.choice((1, 1, 2))):
            changed[name] = chance.choice(BLIND)(files[name] or b"\0", chance)
            name = chance.choice(names)
    return changed


# JSON ------------------------------------------------------------------------------------------------

_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    1e308,
    -0.5,
    1e-320,
)
_TEXTS = (
    "",
    "x",
    "../../x",
    "/etc/passwd",
    "__class__",
    "train",
    "valid",
    "float32",
    "qint8",
    "3",
    "$tensor",
    "\0",
    "\ud800",
)


def _scalar(chance: random.Random) -> Json:
    return chance.choice(
        (None, True, False, chance.choice(_NUMBERS), chance.choice(_NUMBERS), chance.choice(_TEXTS), [], {})
    )


def _typed(node: Json, chance: random.Random) -> Json:
    """One of the kinds that the tree knows, of a value that does not fit it."""
    tensor = {"$tensor": chance.randrange(40)}
    makers: tuple[Callable[[], Json], ...] = (
        lambda: tensor,
        lambda: {
            "$tensor": chance.randrange(40),
            "order": chance.choice(([0], [1, 0], [0, 0], [2**62], "x", [1.0, 0])),
        },
        lambda: {"$tuple": [node]},
        lambda: {"$set": [node]},
        lambda: {"$dict": [[node, node]]},
        lambda: {"$counter": [[node, node]]},
        lambda: {"$ordered": [[[], 1]]},
        lambda: {"$size": [chance.choice(_NUMBERS)]},
        lambda: {"$array": chance.randrange(40)},
        lambda: {"$scalar": chance.randrange(40)},
        lambda: {"$bytes": chance.choice(("AAAA", "A", "%", 3, "A" * 5000))},
        lambda: {"$complex": chance.choice(([0, 1], [0], [{}, 1], ["1", 2]))},
        lambda: {"$float": chance.choice(("nan", "inf", "1", 3))},
        lambda: {"$int": chance.choice(("0x" + "f" * 5000, "f", 3, "-0x1"))},
        lambda: {"$dtype": chance.choice(_TEXTS)},
        lambda: {"$device": chance.choice(("cpu", "cuda:0", "x", "meta", 3, "cuda:999999999999"))},
        lambda: {"$parameter": tensor, "grad": chance.choice((True, 1, "x"))},
        lambda: {
            "$sparse": chance.choice(("coo", "csr", "csc", "bsr", "x")),
            "size": chance.choice(([2, 3], [2**40, 2**40], [-1], [], [chance.choice(_NUMBERS)] * 2)),
            "members": [{"$tensor": chance.randrange(40)} for _ in range(chance.choice((2, 3)))],
            "coalesced": chance.choice((True, False)),
        },
        lambda: {
            "$quantized": chance.choice(("qint8", "quint8")),
            "values": tensor,
            "scale": chance.choice((1.0, 0.0, tensor, {"$tensor": 1})),
            "zero_point": chance.choice((0, 2**40, {"$tensor": 2})),
            **({"axis": chance.choice((0, -1, 7, 2**40))} if chance.random() < 0.5 else {}),
        },
    )
    return chance.choice(makers)()


def _nested(node: Json, chance: random.Random) -> Json:
    for _ in range(chance.choice((3, 60, 150, 400))):
        node = [node] if chance.random() < 0.5 else {"a": node}
    return node


def _places(node: Json, found: list[tuple[Any, Any]], most: int = 4000) -> list[tuple[Any, Any]]:
    waiting = [node]
    while waiting and len(found) < most:
        here = waiting.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, item in items:
            found.append((here, key))
            if isinstance(item, (dict, list)):
                waiting.append(item)
    return found


def _pick(document: Json, chance: random.Random) -> tuple[Any, Any]:
    """A place, and not nearly always one among the 600 numbers of a random state."""
    places = _places(document, [])
    shallow = [place for place in places if not isinstance(place[0], list) or len(place[0]) < 100]
    return chance.choice(shallow or places)


def mutated(document: Json, chance: random.Random, kinds: bool = True) -> Json:
    """JSON with one place, or a few, that no writer wrote."""
    document = deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if not _places(document, []):
            return _scalar(chance)
        home, key = _pick(document, chance)
        kind = chance.randrange(9)
        if kind == 0:
            del home[key]
        elif kind == 1 and isinstance(home, dict):
            home[chance.choice((*_TEXTS, "optimizer", "step", "size", "name"))] = home.pop(key)
        elif kind == 2:
            other, place = _pick(document, chance)
            home[key] = deepcopy(other[place])
        elif kind == 3 and isinstance(home[key], (int, float)):
            home[key] = chance.choice(
                (home[key] + 1, home[key] - 1, -home[key], home[key] * 2, float(home[key] % 2**60))
            )
        elif kind == 4 and isinstance(home, list):
            home.insert(key, deepcopy(home[key]))
        elif kind == 5 and kinds:
            home[key] = _typed(home[key], chance)
        elif kind == 6:
            home[key] = _nested(home[key], chance)
        elif kind == 7 and isinstance(home[key], list):
            home[key] = chance.choice((home[key] * 3, home[key][::-1], home[key][:1]))
        else:
            home[key] = _scalar(chance)
    return document


# Putting the checksums right ---------------------------------------------------------------------------


def json_bytes(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def sealed_hdf5(data: bytes, document: Json) -> bytes:
    """A file of ours with another manifest, and every checksum that fits it."""
    _, _, _, _, offset, room, _ = struct.unpack("<8sIIQQQ16s", data[:56])
    with suppress(KeyError, TypeError, AttributeError, ValueError):  # it will be refused for its structure
        columns = document["tensors"]
        chunks = sum(len(item["chunks"]) - 1 for _, item in columns.get("packed", ()))
        document["digests"] = "0" * 32 * (len(columns["name"]) + chunks)
    for _ in range(2):  # the second time with the checksums of what the first one speaks of
        text = json_bytes(document)
        if len(text) <= room:
            text = text.ljust(room, b"\0")
            data = data[:offset] + text + data[offset + room :]
        else:
            offset, room = len(data), len(text)
            data += text
        data = header(len(data), offset, room, digest(text)) + data[USER_BLOCK:]
        try:
            _put_right(data, document)
        except (DamagedError, KeyError, TypeError, IndexError, AttributeError):
            break  # it will be refused for its structure
    return data


def _put_right(data: bytes, document: Json) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "x.h5")
        path.write_bytes(data)
        with durable.opened(path) as file:
            manifest = read_manifest(file)
    structure, extents = manifest.structure, manifest.structure.listed.extents
    taken = [(structure.offset, structure.size)]
    taken.extend((extent.offset, extent.size) for extent in extents if extent.size)
    document["digests"] = "".join(
        digest(data[extent.offset : extent.offset + extent.size]) for extent in extents
    )
    position, between = USER_BLOCK, []
    for start, size in sorted(taken):
        between.append(data[position:start])
        position = start + size
    document["metadata"] = digest(*between, data[position:])


def hdf5_document(data: bytes) -> Json:
    _, _, _, _, offset, room, _ = struct.unpack("<8sIIQQQ16s", data[:56])
    return json.loads(data[offset : offset + room].rstrip(b"\0"))


def safetensors_document(data: bytes) -> tuple[Json, Json, bytes]:
    size = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + size])
    return document, json.loads(document["__metadata__"]["notebook_learner"]), data[8 + size :]


def sealed_safetensors(document: Json, ours: Json, data: bytes) -> bytes:
    none = "0" * 32
    if isinstance(document, dict) and isinstance(document.get("__metadata__"), dict):
        for item in ours.get("tensors", ()) if isinstance(ours, dict) else ():
            try:
                begin, end = document[item[0]]["data_offsets"]
                item[1] = digest(data[begin:end])
            except (KeyError, TypeError, IndexError, ValueError):
                continue
        document["__metadata__"] |= {
            "notebook_learner.digest": none,
            "notebook_learner": json_bytes(ours).decode(),
        }
    text = json_bytes(document)
    start = len(text).to_bytes(8, "little") + text
    key = b'"notebook_learner.digest":"'
    return start.replace(key + none.encode(), key + digest(start).encode()) + data


def messagepack_document(data: bytes) -> Json:
    return msgpack.unpackb(gzip.decompress(data), strict_map_key=False)


def sealed_messagepack(document: Json, level: int = 0) -> bytes:
    return gzip.compress(msgpack.packb(document, unicode_errors="surrogatepass"), level)


def sealed_index(data: bytes, text: bytes) -> bytes:
    """artifacts.h5 with another header: only that is read."""
    size = struct.unpack("<8sIQ32s", data[:52])[2]
    return struct.pack("<8sIQ32s", data[:8], 1, len(text), digest(text).encode()) + text + data[52 + size :]


def index_document(data: bytes) -> Json:
    size = struct.unpack("<8sIQ32s", data[:52])[2]
    return json.loads(data[52 : 52 + size])


def _document(name: str, data: bytes) -> Json:
    if name.endswith(".safetensors"):
        return safetensors_document(data)[1]
    return messagepack_document(data) if name.endswith(".mpk.gz") else hdf5_document(data)


def _sealed(name: str, data: bytes, document: Json) -> bytes:
    if name.endswith(".safetensors"):
        outer, _, rest = safetensors_document(data)
        return sealed_safetensors(outer, document, rest)
    return sealed_messagepack(document) if name.endswith(".mpk.gz") else sealed_hdf5(data, document)


def own_digest(name: str, data: bytes) -> str:
    """What a commit file calls this file by."""
    if name.endswith(".mpk.gz"):
        return digest(data)
    if name.endswith(".h5"):
        return data[40:56].hex()
    return str(safetensors_document(data)[0]["__metadata__"]["notebook_learner.digest"])


def recommitted(files: Files, part: str) -> None:
    """Make the commit file speak of a part as it is now."""
    suffix = part[part.index("-") :]
    state = f"checkpoint/state{suffix}"
    document = _document(state, files[state])
    entry = document["tree"]["files"][part.removeprefix("checkpoint/").removesuffix(suffix)]
    entry["size"], entry["digest"] = len(files[part]), own_digest(part, files[part])
    files[state] = _sealed(state, files[state], document)


def sealed(files: Files, chance: random.Random) -> Files:
    """A run in which one file says something else, and every checksum fits."""
    changed = dict(files)
    name = chance.choice(
        [name for name in sorted(files) if name.startswith("checkpoint/")] + ["artifacts.h5", "log"]
    )
    if name == "artifacts.h5":
        document = mutated(index_document(files[name]), chance)
        changed[name] = sealed_index(files[name], json_bytes(document))
        return changed
    if name == "log":
        name = chance.choice([name for name in sorted(files) if name.endswith(".log")])
        changed[name] = _log(files[name], chance)
        return changed
    data = files[name]
    if name.endswith(".safetensors") and chance.random() < 0.5:
        document, ours, rest = safetensors_document(data)
        changed[name] = sealed_safetensors(mutated(document, chance, kinds=False), ours, rest)
    else:
        document = _document(name, data)
        if chance.random() < 0.8 and isinstance(document.get("tree"), (dict, list)):
            document["tree"] = mutated(document["tree"], chance)
        else:
            document = mutated(document, chance, kinds=False)
        try:
            changed[name] = _sealed(name, data, document)
        except (OverflowError, ValueError, RecursionError, TypeError):  # MessagePack cannot say it
            return blind(files, chance)
    if not name.startswith("checkpoint/state"):
        with suppress(KeyError, TypeError, ValueError):  # a safetensors file without metadata
            recommitted(changed, name)
    return changed


_LINES = (
    "",
    "nan,1",
    "1e999,3",
    "-1,-1",
    "x",
    "0.5",
    "0.5,final",
    "final",
    "1,2,3",
    "9" * 5000,
    ",",
    "inf,inf",
    "\0",
    "\udcff",
)


def _log(data: bytes, chance: random.Random) -> bytes:
    lines = data.decode().split("\n")
    for _ in range(chance.choice((1, 2, 5))):
        line = chance.choice((chance.choice(_LINES), chance.choice(lines)))
        lines.insert(chance.randrange(len(lines)), line)
    return "\n".join(lines).encode(errors="surrogateescape")

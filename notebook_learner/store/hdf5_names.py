"""Names for a viewer of an HDF5 file: a group for every level of a nested value, a dataset for every
tensor.

The real name of a tensor is in the tree of the manifest. So a name may be changed here if HDF5 does not allow
it, or if two names would be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from .digest import digest_of

MANIFEST = "manifest"
"""The dataset at the root whose name no tensor may have."""
LONGEST = 200
"""The most bytes of a name. HDF5 allows 64 KiB, but no screen shows so much."""

Keys = Sequence[str]


def dataset_paths(names: Sequence[Keys], also: Sequence[tuple[int, Keys]]) -> list[tuple[str, ...]]:
    """A path for every tensor, and several for a tensor in several places.

    >>> dataset_paths([("encoder", "weight"), ("a/b",)], [(0, ("decoder", "weight"))])
    [('encoder/weight', 'decoder/weight'), ('a%2Fb',)]
    """
    root = _Folder("")
    root.taken.add(MANIFEST)
    paths = [[root.dataset(keys)] for keys in names]
    for index, keys in also:
        paths[index].append(root.dataset(keys))
    return [tuple(found) for found in paths]


def escaped(name: str) -> str:
    """A name that HDF5 allows; `unescaped` reverses it, except for a name that was too long.

    >>> escaped("a/b"), escaped("."), escaped(""), escaped("50%")
    ('a%2Fb', '%2E', '%', '50%25')
    """
    if not name:
        return "%"
    name = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    encoded = name.encode("utf-8", "backslashreplace")
    if len(encoded) > LONGEST:
        return encoded[: LONGEST - 17].decode("utf-8", "ignore") + "~" + digest_of(encoded)[:16]
    return encoded.decode()


def unescaped(name: str) -> str:
    """The name before it was escaped.

    >>> unescaped("a%2Fb"), unescaped("%")
    ('a/b', '')
    """
    if name == "%":
        return ""
    return name.replace("%2E", ".").replace("%00", "\0").replace("%2F", "/").replace("%25", "%")


class _Folder:
    """A group while its names are chosen."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.taken: set[str] = set()
        self._below: dict[str, _Folder] = {}

    def dataset(self, keys: Keys) -> str:
        folder = self
        for key in keys[:-1]:
            folder = folder._folder(key)
        return folder.prefix + folder._free(keys[-1] if keys else "value")

    def _folder(self, key: str) -> _Folder:
        found = self._below.get(key)
        if found is None:
            found = self._below[key] = _Folder(f"{self.prefix}{self._free(key)}/")
        return found

    def _free(self, key: str) -> str:
        name = wanted = escaped(key)
        count = 1
        while name in self.taken:
            count += 1
            name = f"{wanted}~{count}"
        self.taken.add(name)
        return name

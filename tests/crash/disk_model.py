"""A disk that loses its power: what the store asks of the file system is recorded, and played again up to
any call, with what was not synced dropped or kept in any mixture.

The rules are those that POSIX gives, and harsher than any common file system: the bytes of a file are on the
disk at its fsync, a name in a directory at the fsync of that directory, and everything else may have
happened or not, each for itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash_support import Call

Tree = dict[Path, "bytes | None"]
"""The bytes of each file; None for a folder."""

Keep = Callable[[list[Any]], list[Any]]
"""Which of the changes that were not synced have happened, in their order."""


@dataclass
class Node:
    """A file or a directory: as it is on the disk, and what was changed since."""

    durable: Any
    waiting: list[Any] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.after(list)
        self.waiting = []


class Content(Node):
    def after(self, keep: Keep) -> bytes:
        data = bytearray(self.durable)
        for at, new in keep(self.waiting):
            if new is None:
                del data[at:]
            else:
                data.extend(bytes(max(0, at - len(data))))  # the size has grown, the bytes are not there
                data[at : at + len(new)] = new
        return bytes(data)

    @property
    def size(self) -> int:
        return len(self.after(list))


class Names(Node):
    def after(self, keep: Keep) -> dict[str, Node]:
        names = dict(self.durable)
        for removed, added, node in keep(self.waiting):
            names.pop(removed, None)
            if added:
                names[added] = node
        return names


class Disk:
    """What is below a folder, as the calls say that have been played."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Names({})
        self.open: dict[int, Content] = {}

    def play(self, name: str, given: tuple[Any, ...]) -> None:
        getattr(self, "_" + name)(*given)

    def after(self, keep: Keep) -> Tree:
        """What a machine finds that starts again now."""
        return dict(self._below(self.top, Path(), keep))

    @property
    def most_waiting(self) -> int:
        """The number of changes that wait for a sync, in the file or folder that has most."""
        return max(map(len, self._waiting(self.top)))

    def _waiting(self, node: Node) -> Iterator[list[Any]]:
        yield node.waiting
        if isinstance(node, Names):
            for each in node.after(list).values():
                yield from self._waiting(each)

    def _below(self, names: Names, folder: Path, keep: Keep) -> Iterator[tuple[Path, bytes | None]]:
        yield folder, None
        for name, node in names.after(keep).items():
            if isinstance(node, Names):
                yield from self._below(node, folder / name, keep)
            else:
                assert isinstance(node, Content)
                yield folder / name, node.after(keep)

    # The calls ---------------------------------------------------------------------------------------

    def _find(self, path: Path) -> Node:
        node: Node = self.top
        for part in path.relative_to(self.root).parts:
            node = node.after(list)[part]  # type: ignore[attr-defined]
        return node

    def _has(self, path: Path) -> bool:
        try:
            self._find(path)
        except KeyError:
            return False
        return True

    def _name(self, path: Path, node: Node | None, removed: str = "") -> None:
        self._find(path.parent).waiting.append((removed, path.name if node else "", node))

    def _make_directory(self, path: Path) -> None:
        for each in reversed([path, *path.parents]):
            if each.is_relative_to(self.root) and not self._has(each):
                self._name(each, Names({}))

    def _create(self, path: Path, descriptor: int) -> None:
        self.open[descriptor] = Content(b"")
        self._name(path, self.open[descriptor])

    def _open_to_append(self, path: Path, descriptor: int, fresh: bool) -> None:
        if not self._has(path):
            self._name(path, Content(b""))
        self.open[descriptor] = self._find(path)  # type: ignore[assignment]
        if fresh:
            self.open[descriptor].waiting.append((0, None))

    def _open_to_read(self, path: Path, descriptor: int) -> None:
        if path.is_relative_to(self.root):
            self.open[descriptor] = self._find(path)  # type: ignore[assignment]

    def _close(self, descriptor: int) -> None:
        self.open.pop(descriptor, None)

    def _append(self, descriptor: int, data: bytes) -> None:
        self.open[descriptor].waiting.append((self.open[descriptor].size, data))

    def _write_at(self, descriptor: int, data: bytes, offset: int) -> None:
        self.open[descriptor].waiting.append((offset, data))

    def _sync(self, descriptor: int) -> None:
        self.open[descriptor].sync()

    def _sync_directory(self, path: Path) -> None:
        if path.is_relative_to(self.root):
            self._find(path).sync()

    def _rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent
        self._name(target, self._find(source), removed=source.name)

    def _unlink(self, path: Path) -> None:
        if self._has(path):
            self._name(path, None, removed=path.name)

    def _delete_all(self, folder: Path, names: list[str]) -> None:
        for name in names:
            self._unlink(folder / name)

    def _remove_directory(self, path: Path) -> None:
        self._name(path, None, removed=path.name)

    def _truncate(self, path: Path, size: int) -> None:
        self._find(path).waiting.append((size, None))


class Recording:
    """A hand for `Calls`: does each call, and notes those that change something."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        # Taken again by a call that comes of this one: the garbage collector closes what was left open.
        self._one = threading.RLock()

    def __call__(
        self, number: int, name: str, real: Call, given: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        with self._one:  # in the order in which they were done
            result = real(*given, **named)
            noted = self._noted(name, given, named, result)
            if noted is not None:
                self.calls.append((name, noted))
        return result

    def note(self, verb: str, label: str) -> None:
        """What a person was told here."""
        self.calls.append((verb, (label,)))

    def _noted(
        self, name: str, given: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> tuple[Any, ...] | None:
        if name in ("create", "open_to_read"):
            return (given[0], result)
        if name == "open_to_append":
            return (given[0], result, named.get("fresh", False))
        if name == "append":
            return (given[0], bytes(given[1])[:result])
        if name == "write_at":
            return (given[0], b"".join(bytes(buffer) for buffer in given[1])[:result], given[2])
        looks = (
            "read_at",
            "size_of",
            "link_count",
            "names_in",
            "stats_in",
            "opened_folder",
            "open_directory",
            "require_plain",
            "allocate",
            "begin_to_sync",
        )
        return None if name in looks else given


def nothing(changes: list[Any]) -> list[Any]:
    """Nothing that was not synced has happened."""
    return []


def all_of(changes: list[Any]) -> list[Any]:
    """Everything has happened."""
    return changes


def some(chance: random.Random) -> Keep:
    """Some of it, here more and there less."""

    def keep(changes: list[Any]) -> list[Any]:
        share = chance.choice([0.1, 0.5, 0.9])
        return [change for change in changes if chance.random() < share]

    return keep


def each_alone_or_missing(most: int) -> Iterator[Keep]:
    """One change of each file and folder has happened and the others have not, or all but this one have."""
    for number in range(most):
        yield lambda changes, at=number: changes[at : at + 1]  # type: ignore[misc]
        yield lambda changes, at=number: changes[:at] + changes[at + 1 :]  # type: ignore[misc]


def write_tree(tree: Tree, folder: Path) -> None:
    """Make a folder that holds just this."""
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def tree_of(folder: Path) -> Tree:
    """What a folder holds."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in (folder, *folder.rglob("*"))
    }

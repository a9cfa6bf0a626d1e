"""How much memory a file may take.

The tensors of a file take at most twice its size, also if they are compressed very well. So writers store
some tensors uncompressed, and readers refuse a file that claims more before they take memory for it.

The other values are counted: an empty list takes three bytes in a file and 128 in memory, so a small file
could fill a machine's memory with lists. Readers and writers count in the same way, before the values are
made, so every file that is written can be read again.

The weights are upper bounds. They were measured with CPython 3.11 on the tree of a file and the value made
of it, which are in memory at the same time.
"""

from __future__ import annotations

from typing import Any

from ..errors import CheckpointError

TIMES = 2
"""The most bytes of tensors for one byte of a file."""
LARGEST_CHUNK = 8 << 20
"""Bytes of a tensor that are compressed at a time. Unpacking also holds the compressed bytes of a chunk."""
SPARE = 64 << 20
"""Bytes of memory that even the smallest file may take: a list of a million numbers."""
VALUE, TEXT, KEY, LIST, MAP = 50, 30, 250, 200, 500
"""Bytes of memory of a number, and the extra bytes of a text, a key in a map, a list, a map."""
TENSOR = 1000
"""The memory of an empty tensor and its description, which is only a few characters in the columns."""

_MOST = MAP
"""The most memory for one byte of text."""
_COUNTED = b',:"[{'
"""Only the bytes that count in a text without wide characters."""


def room(size: int) -> int:
    """The largest weight of a file with so many bytes, not counting the text of the values."""
    return size + SPARE


def weight_of_text(text: bytes | bytearray) -> int:
    """The most memory that the values of a JSON text can take, without parsing it. Signs in strings count,
    too; the characters of strings count only if they take more memory than the text.

    >>> weight_of_text(b'[[],{"a":1.5}]') == 2 * LIST + MAP + KEY + VALUE + TEXT
    True
    """
    weight = VALUE * text.count(b",") + KEY * text.count(b":") + TEXT * text.count(b'"') // 2
    return weight + LIST * text.count(b"[") + MAP * text.count(b"{") + _wide(text)


def _wide(text: bytes | bytearray) -> int:
    """One character outside ASCII makes all others of its string as wide as itself, and for a moment the
    pieces of the string are in memory, too."""
    if not text.isascii():
        return 12 * len(text)  # the decoded text, too
    if b"\\" not in text:
        return 0  # this check is thirty times as fast as the next one
    if b"\\ud" in text:
        return 8 * len(text)
    return 4 * len(text) if b"\\u" in text else 0


def weight_of_tree(tree: Any) -> int:
    """The same for values that exist already, including their strings.

    >>> weight_of_tree([[], {"a": 1.5}]) == 2 * LIST + MAP + KEY + TEXT + 4 * VALUE + 1
    True
    """
    if isinstance(tree, str):
        return VALUE + weight_of_string(tree)
    if isinstance(tree, list):
        return LIST + VALUE + sum(map(weight_of_tree, tree))
    if isinstance(tree, dict):
        keys = sum(KEY + weight_of_string(key) for key in tree)
        return MAP + VALUE + keys + sum(map(weight_of_tree, tree.values()))
    return VALUE


def weight_of_string(text: str) -> int:
    """The extra memory of a string and its characters, compared with another value."""
    return TEXT + (len(text) if text.isascii() else 4 * len(text))


def fits(text: bytes | bytearray, size: int, more: int = 0) -> bool:
    """Whether the values of a JSON text, and others of the weight `more`, may be made from a file that has so
    many other bytes."""
    return _at_most(text) + more <= SPARE or weight_of_text(text) + more <= room(size)


def _at_most(text: bytes | bytearray) -> int:
    """An upper bound of the weight. For 2,000 tensors it saves a quarter of a millisecond."""
    if len(text) * _MOST <= SPARE or _wide(text):
        return len(text) * _MOST
    return (len(text) - len(text.translate(None, _COUNTED))) * _MOST


def too_many(tree: Any, what: str) -> CheckpointError:
    """The error for a value with so many numbers, lists and dicts that no reader would accept it. It names
    the largest list."""
    count, place = _largest(tree, what) if _has_items(tree) else (1, what)
    return CheckpointError(
        f"{what} holds more single values than a file of its size may, the most of them ({count:,}) in "
        f"{place}; make that a tensor or an array"
    )


def _largest(tree: Any, place: str) -> tuple[int, str]:
    """The list or dict with the most items, and its place in the value that the tree was made of."""
    if isinstance(tree, list):
        inner = [(f"{place}[{index}]", item) for index, item in enumerate(tree) if _has_items(item)]
    else:
        named = ((place if key.startswith("$") else f"{place}[{key!r}]", tree[key]) for key in tree)
        inner = [(where, item) for where, item in named if _has_items(item)]
    return max([(len(tree), place), *(_largest(item, where) for where, item in inner)])


def _has_items(tree: Any) -> bool:
    return isinstance(tree, (list, dict))

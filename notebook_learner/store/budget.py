"""How much memory a file may take.

Its tensors take twice its size at most, however well they are compressed: writers keep to that by storing
some of them as they are, and readers refuse what claims more before they take memory for it.

The values beside the tensors are counted: an empty list is three bytes of a file and 128 of memory, so a
small file could fill a machine with them. Readers and writers count alike, before the values are made, so
nothing is written that will not be read again.

The weights are upper bounds, measured with CPython 3.11 on the tree of a file and the value made of it,
which are there at the same time.
"""

from __future__ import annotations

from typing import Any

from ..errors import CheckpointError

TIMES = 2
"""How many bytes of tensors a byte of a file may become."""
LARGEST_CHUNK = 8 << 20
"""Bytes of a tensor that are compressed at a time; unpacking takes the compressed ones of a chunk beside."""
SPARE = 64 << 20
"""Bytes of memory that any file may take, however small: a list of a million numbers."""
VALUE, TEXT, KEY, LIST, MAP = 50, 30, 250, 200, 500
"""Bytes of memory of a number, and how many more of a text, a key in a map, a list, a map."""
TENSOR = 1000
"""What an empty tensor takes, with what is noted of it: in columns it is a few characters."""

_MOST = MAP
"""What one byte of text can come to."""
_COUNTED = b',:"[{'
"""The bytes of a text that have a weight, where no character is wide."""


def room(size: int) -> int:
    """The weight that a file of so many bytes (beside the text of the values) may have."""
    return size + SPARE


def weight_of_text(text: bytes | bytearray) -> int:
    """What the values of a JSON text take at most, without parsing it. Signs within strings are counted
    along, and the strings' characters only where they take more memory than text.

    >>> weight_of_text(b'[[],{"a":1.5}]') == 2 * LIST + MAP + KEY + VALUE + TEXT
    True
    """
    weight = VALUE * text.count(b",") + KEY * text.count(b":") + TEXT * text.count(b'"') // 2
    return weight + LIST * text.count(b"[") + MAP * text.count(b"{") + _wide(text)


def _wide(text: bytes | bytearray) -> int:
    """One character beyond ASCII makes all others of its string as wide as itself, and for a moment the
    string is there in pieces, too."""
    if not text.isascii():
        return 12 * len(text)  # the decoded text, too
    if b"\\" not in text:
        return 0  # found out thirty times as fast as what follows
    if b"\\ud" in text:
        return 8 * len(text)
    return 4 * len(text) if b"\\u" in text else 0


def weight_of_tree(tree: Any) -> int:
    """The same for values that are there already, their strings included.

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
    """What a string takes beyond another value, its characters included."""
    return TEXT + (len(text) if text.isascii() else 4 * len(text))


def fits(text: bytes | bytearray, size: int, more: int = 0) -> bool:
    """Whether the values of a JSON text, and others of the weight `more`, may be made of a file that has so
    many bytes beside it."""
    return _at_most(text) + more <= SPARE or weight_of_text(text) + more <= room(size)


def _at_most(text: bytes | bytearray) -> int:
    """More than the weight can be, a fourth of a millisecond sooner with 2,000 tensors."""
    if len(text) * _MOST <= SPARE or _wide(text):
        return len(text) * _MOST
    return (len(text) - len(text.translate(None, _COUNTED))) * _MOST


def too_many(tree: Any, what: str) -> CheckpointError:
    """The error for a value that has too many numbers, lists and dicts to be read again; it names the
    largest list."""
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

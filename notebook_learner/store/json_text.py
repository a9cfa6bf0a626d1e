"""Writes the shortest JSON, and reads JSON that may come from a stranger."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .budget import fits


def to_text(value: Any) -> str:
    """A value as JSON, in ASCII.

    >>> to_text({"shape": [2, 3]})
    '{"shape":[2,3]}'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def parse(text: bytearray, size: int, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Read a JSON text from a file that has `size` other bytes. The text is emptied, because it would double
    the memory of the value.

    Args:
        text: the whole text.
        size: the size of the rest of the file.
        pairs: makes the objects, if they are not plain dicts.

    Raises:
        ValueError: with the reason.

    >>> parse(bytearray(b'{"shape":[2,3]}'), 0)
    {'shape': [2, 3]}
    """
    if not fits(text, size):
        raise ValueError("it holds more single values than a file of its size may")
    characters = text.decode()
    text.clear()
    try:
        return (_PLAIN if pairs is None else _decoder(pairs)).decode(characters)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _decoder(pairs: Callable[[list[tuple[str, Any]]], Any] | None) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=pairs, parse_constant=_no_constant)


_PLAIN = _decoder(None)
"""A decoder is made only once: to make it takes as long as to read a short text."""

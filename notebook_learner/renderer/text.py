"""Turn names, reasons and notices, which come from users, into one harmless line of text."""

from __future__ import annotations

import unicodedata

_ASCII = {"·": "|", "…": "...", "—": "-", "→": "->"}


def one_line(text: str) -> str:
    """Remove line breaks and control characters, which could move a terminal's cursor.

    >>> one_line("two\\nlines \\x1b[31mred")
    'two lines [31mred'
    """
    if text.isascii() and text.isprintable():
        return text
    kept = (" " if char.isspace() else char for char in str(text))
    clean = "".join(char for char in kept if not unicodedata.category(char).startswith("C"))
    return " ".join(clean.split())


def encodable(text: str, encoding: str | None) -> str:
    """Replace the characters that an encoding does not have by similar ones, or by `?`.

    >>> encodable("é · β", "latin-1"), encodable("é · β", "ascii")
    ('é · ?', '? | ?')
    """
    codec = encoding or "ascii"
    return text if _fits(text, codec) else "".join(_likeness(char, codec) for char in text)


def _fits(text: str, codec: str) -> bool:
    try:
        text.encode(codec)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _likeness(char: str, codec: str) -> str:
    return char if char.isascii() or _fits(char, codec) else _ASCII.get(char, "?")


def place(epoch: int, split: str, step: int, total: int | None) -> str:
    """The position of the training, in the words of `Position`."""
    of = "" if total is None else f" of {total}"
    return f"epoch {epoch}, {split}, step {step}{of}"

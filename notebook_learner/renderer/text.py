"""Words and numbers for people. Logs keep every digit; here four digits are enough to compare."""

from __future__ import annotations

import math
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


DIGITS = 4
"""Significant digits of a metric value."""


def number(value: float, unit: str = "") -> str:
    """Format a value with four significant digits and its unit.

    >>> number(91.20384, "%"), number(0.000123), number(0), number(float("nan"))
    ('91.20 %', '1.23e-4', '0', 'NaN')
    """
    text = _finite(float(value)) if math.isfinite(value) else _special(value)
    return f"{text} {unit}" if unit else text


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "inf" if value > 0 else "-inf"


def _finite(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.{DIGITS - 1}e}".partition("e")
    exponent = int(power)  # after rounding, so 9999.96 counts as 10,000
    if -2 <= exponent < DIGITS:
        return f"{value:,.{DIGITS - 1 - exponent}f}"
    if DIGITS <= exponent < 6:
        return f"{value:,.0f}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def count(value: int) -> str:
    """Format a whole number with commas between the thousands.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def percent(fraction: float) -> str:
    """Format a share of the whole, rounded down, so that 100 % means done.

    >>> percent(0.999)
    '99 %'
    """
    return f"{math.floor(100 * min(max(fraction, 0.0), 1.0) + 1e-9)} %"


def size_text(size: float) -> str:
    """Format a size in bytes.

    >>> size_text(512), size_text(389_000_000)
    ('512 B', '389 MB')
    """
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size:.0f} B"


def duration(seconds: float) -> str:
    """Format a time span in its two largest units.

    >>> duration(3725), duration(65), duration(12.4), duration(3.21), duration(0.012)
    ('1 h 02 min', '1 min 05 s', '12 s', '3.2 s', '12 ms')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def remaining(seconds: float) -> str:
    """Format an estimate of the time left, with few digits.

    >>> remaining(0.3), remaining(4.4), remaining(754)
    ('< 1 s', '4 s', '12 min 34 s')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    return "< 1 s" if seconds < 1 else duration(float(round(seconds))).replace(".0 s", " s")


def rate(per_second: float, what: str) -> str:
    """Format a rate per second, or per minute if it is slow.

    >>> rate(118.4, "steps"), rate(3812, "samples"), rate(0.2, "steps")
    ('118 steps/s', '3.8k samples/s', '12 steps/min')
    """
    if not math.isfinite(per_second) or per_second < 0:
        return f"? {what}/s"
    if 0 < per_second < 1:
        return f"{_short(60 * per_second)} {what}/min"
    return f"{_short(per_second)} {what}/s"


def _short(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.{1 if scaled < 9.95 else 0}f}{suffix}"
    return f"{value:.{1 if value < 9.95 else 0}f}"

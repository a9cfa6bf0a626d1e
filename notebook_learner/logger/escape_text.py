"""Makes names and texts from outside safe in a line of a log.

A directory, a set, a metric or another machine may have any name: `run;touch pwned`. A user may paste a log
line with such a name into a shell, and a terminal shows it. Neither must run anything from it.
"""

from __future__ import annotations

_ACTIVE = frozenset(";&|<>$`\\\"'#")
"""Characters that a shell acts on outside of quotes."""
_QUOTE = "'\"'\"'"
"""How to write a quote inside quotes."""


def quoted(name: str) -> str:
    """A name; in shell quotes if a shell would act on one of its characters.

    >>> quoted("runs/digits"), quoted("Top-K Accuracy @ TopK(5)")
    ('runs/digits', 'Top-K Accuracy @ TopK(5)')
    >>> print(quoted("run;touch pwned"), quoted("it's"))
    'run;touch pwned' 'it'"'"'s'
    """
    name = visible(name)
    if _ACTIVE.isdisjoint(name):
        return name
    inside = name.replace("'", _QUOTE)
    return f"'{inside}'"


def unquoted(text: str) -> str:
    """The name, from the text that `quoted` wrote.

    >>> unquoted(quoted("it's")), unquoted("clean")
    ("it's", 'clean')
    """
    inside = len(text) > 1 and text[0] == text[-1] == "'"
    return text[1:-1].replace(_QUOTE, "'") if inside else text


def harmless(text: str, *, prose: bool = False) -> str:
    r"""A sentence, with a backslash before each character that a shell would act on; paired quotes stay.

    In `prose` the names already have quotes, as `repr` writes them, and a semicolon before a space belongs
    to the sentence.

    >>> print(harmless("'a;b' held a run, which is now in 'a;b-1'"))
    'a;b' held a run, which is now in 'a;b-1'
    >>> print(harmless("the run's directory is a;b"), harmless('"$(x)"'))
    the run\'s directory is a\;b "\$(x)"
    >>> print(harmless("'a; b' held a run; it's gone", prose=True))
    'a; b' held a run; it\'s gone
    """
    text = visible(text)
    if _ACTIVE.isdisjoint(text):
        return text
    written: list[str] = []
    place = 0
    while place < len(text):
        character = text[place]
        end = _end_of_quotes(text, place) if character in "'\"" else -1
        own = prose and character == ";" and text[place + 1 : place + 2] == " "
        if end >= 0:
            inside = text[place:end]
            written.append(inside if character == "'" else _escaped(inside, "$`\\"))
            written.append(character)
            place = end
        elif own and "\\'" not in text:  # otherwise it is a name that holds both kinds of quotes
            written.append(character)
        else:
            written.append(_escaped(character, _ACTIVE))
        place += 1
    return "".join(written)


def visible(text: str) -> str:
    r"""A text in one line, with an escape for each character that a terminal would act on or not show.

    >>> print(visible("one\ntwo"), visible("\x1b[2J"))
    one two \x1b[2J
    """
    text = " ".join(text.splitlines())
    if text.isprintable():
        return text
    shown = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return "".join(shown)


def _end_of_quotes(text: str, start: int) -> int:
    """The index where the quotes that start there end; -1 if they do not end, as in "the run's"."""
    if start and text[start - 1].isalnum():
        return -1
    return text.find(text[start], start + 1)


def _escaped(text: str, active: frozenset[str] | str) -> str:
    return "".join(f"\\{each}" if each in active else each for each in text)

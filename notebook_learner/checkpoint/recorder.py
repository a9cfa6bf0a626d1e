"""What a file format is: a Recorder turns a nested value into a file's bytes, and back.

It touches no disk when it writes: `encode` gives the bytes as pieces (most of them the tensors' own
memory), and whoever keeps checkpoints writes them durably. When it reads it is given an open file, and
asks for the bytes it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..store.durable import Reader
from ..store.files import Bytes


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file before it is written."""

    pieces: Sequence[Bytes]
    """Its bytes, in order. They may be the memory of the tensors: write them before those change."""
    size: int
    digest: str
    """A checksum that covers every byte that `decode` reads. The commit file names it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a file holds."""

    value: Any
    digest: str


@runtime_checkable
class Lossy(Protocol):
    """A recorder that can tell what its rounding has cost."""

    def lost(self, file: Reader, /) -> str:
        """In one line."""


@runtime_checkable
class Recorder(Protocol):
    """A file format for checkpoints. Given to `LearnerBuilder.with_file_checkpointer`.

    `suffix` ends the file's name ("h5"); `exact` tells whether every bit comes back: training goes on
    only from an exact checkpoint.
    """

    suffix: str
    exact: bool

    def encode(self, value: Any, /, what: str = "state") -> Encoded:
        """A nested value (dicts, lists, tensors, numbers, ...) as the bytes of a file.

        Raises:
            CheckpointError: the format cannot hold something; the message names its place in `what`.
        """

    def decode(self, file: Reader, /) -> Decoded:
        """The value again.

        Raises:
            DamagedError: the file is damaged or not one of this format. Whatever a file declares, no
                more memory is taken than its own size justifies, and no code of it is run.
        """

    def outline(self, file: Reader, /) -> Decoded:
        """The value with empty tensors (on the "meta" device) in place of the real ones, reading as
        little as can be: for lists of checkpoints. Its digest is what the file says of itself.

        Where a recorder has a method `head(file, before, /)`, that is asked first: for the entries of a dict
        before a key, or None where they cannot be read without the rest."""

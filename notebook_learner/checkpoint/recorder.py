"""The interface of a file format: a Recorder turns a nested value into a file's bytes, and back.

A recorder does not write to the disk: `encode` returns the bytes as pieces (most of them the tensors' own
memory), and the checkpoint folder writes them durably. To read, a recorder gets an open file, and reads the
bytes that it needs.
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
    """Its bytes, in order. They may be the memory of the tensors: write them before the tensors change."""
    size: int
    digest: str
    """A checksum of every byte that `decode` reads. The commit file holds it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The contents of a file."""

    value: Any
    digest: str


@runtime_checkable
class Lossy(Protocol):
    """A recorder that can say what its rounding has lost."""

    def lost(self, file: Reader, /) -> str:
        """Say in one line what the rounding has lost."""


@runtime_checkable
class Recorder(Protocol):
    """A file format for checkpoints, for `LearnerBuilder.with_file_checkpointer`.

    `suffix` is the end of the file's name ("h5"). `exact` says whether every bit is kept: training goes on
    only from an exact checkpoint.
    """

    suffix: str
    exact: bool

    def encode(self, value: Any, /, what: str = "state") -> Encoded:
        """Encode a nested value (dicts, lists, tensors, numbers, ...) as the bytes of a file.

        Raises:
            CheckpointError: the format cannot hold one of the values; the message names its place in `what`.
        """

    def decode(self, file: Reader, /) -> Decoded:
        """Decode the value.

        Raises:
            DamagedError: the file is damaged or has another format. A recorder never takes more memory
                than the file's size justifies, and never runs code from the file.
        """

    def outline(self, file: Reader, /) -> Decoded:
        """Decode the value with empty tensors (on the "meta" device) instead of the real ones, and read as
        little as possible: for lists of checkpoints. The digest is the one that the file itself states.

        If a recorder has a method `head(file, before, /)`, it is called first. It returns the entries of a
        dict before a key, or None if they cannot be read without the rest."""

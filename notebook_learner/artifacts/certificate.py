"""A certificate of a run: its steps gave the same bits again; with hashes of record, states and data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..checkpoint.folder import CheckpointFolder
from ..errors import DamagedError, StateError
from ..event.values import Record
from ..store.layout import RunLayout
from ..store.tensors import digest_of_tensor
from .weights import state_dict_of

NAME = "certificate.json"
_VERSION = 1


@dataclass(frozen=True)
class Certificate:
    """What a replay of a whole run found.

    >>> one = Certificate(steps=80, replayed=80, record="3f", states={"10": "a1"}, data={"train": "7c"})
    >>> Certificate.from_json(one.to_json()) == one
    True
    """

    steps: int
    """The training steps of the run."""
    replayed: int
    """How many of them were taken again."""
    record: str
    """A hash of the values of all metrics at all steps."""
    states: Mapping[str, str] = field(default_factory=dict)
    """By the label of a checkpoint: a hash of its weights."""
    data: Mapping[str, str] = field(default_factory=dict)
    """By split: the fingerprint of the data."""
    versions: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    """The first difference; empty if all was equal to the bit."""

    @property
    def exact(self) -> bool:
        """Whether every step that was taken again gave the same bits."""
        return not self.differs

    def to_json(self) -> str:
        """The text of its file."""
        return json.dumps({"version": _VERSION, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Certificate:
        """Read what `to_json` wrote.

        Raises:
            DamagedError: it is no certificate.
        """
        try:
            told = json.loads(text)
            return Certificate(
                int(told["steps"]),
                int(told["replayed"]),
                str(told["record"]),
                _texts(told["states"]),
                _texts(told["data"]),
                _texts(told["versions"]),
                str(told["differs"]),
            )
        except (KeyError, TypeError, ValueError) as wrong:
            raise DamagedError(f"this is no certificate of a run: {wrong!r:.100}") from wrong


def _texts(told: Any) -> dict[str, str]:
    if not isinstance(told, dict) or not all(isinstance(each, str) for each in told.values()):
        raise ValueError("no texts by name")
    return told


def read_certificate(given: Certificate | str | os.PathLike[str]) -> Certificate:
    """A certificate, or the one in a file.

    Raises:
        StateError: there is no such file.
    """
    if isinstance(given, Certificate):
        return given
    try:
        return Certificate.from_json(Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise StateError(f"no certificate at {os.fspath(given)!r}: {error.strerror or error}") from error


def digest_of_record(record: Record) -> str:
    """A hash of what was measured: of each metric of each pass, step by step."""
    digest = blake2b(digest_size=16)
    for part in record:
        names = sorted({name for block in part.blocks for name in block.columns})
        for name in names:
            digest.update(f"{part.epoch} {part.split} {name}".encode())
            for block in part.blocks:
                column = block.columns.get(name)
                if column is not None and column.weights is not None:
                    digest.update(column.values.tobytes())
    return digest.hexdigest()


def digest_of_weights(tensors: Mapping[str, Any]) -> str:
    """A hash of a model's weights and buffers, by name."""
    digest = blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {digest_of_tensor(tensors[name])}".encode())
    return digest.hexdigest()


def states_in(directory: str | os.PathLike[str]) -> dict[str, str]:
    """The hash of the weights of each checkpoint that is whole."""
    folder = CheckpointFolder(RunLayout(directory).checkpoint)
    return {
        info.label: digest_of_weights(state_dict_of(folder.read(info, "model"), info.label))
        for info in folder.list()
        if not info.damage and "model" in info.files
    }


def problems_with(
    certificate: Certificate, directory: str | os.PathLike[str], record: Record, data: Mapping[str, str]
) -> Iterator[str]:
    """In what a run is not the one of a certificate."""
    if certificate.differs:
        yield f"the certificate itself says that the replay differed: {certificate.differs}"
    steps = sum(part.steps for part in record if part.split == "train")
    if steps != certificate.steps:
        yield f"the run has {steps} training steps, the certificate is of {certificate.steps}"
    elif digest_of_record(record) != certificate.record:
        yield "the measured values are not those of the certificate"
    here = states_in(directory)
    for label, digest in certificate.states.items():
        if label not in here:
            yield f"checkpoint {label}, which the certificate names, is not there"
        elif here[label] != digest:
            yield f"the weights of checkpoint {label} are not those of the certificate"
    for split, told in certificate.data.items():
        if split in data and data[split] != told:
            yield f"the {split} data have the fingerprint {data[split]}, the certificate says {told}"

"""Chooses the recorder that reads a file by the end of the file's name."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..store import durable
from .recorder import Recorder

_READERS = {
    "h5": (".hdf5", "Hdf5Recorder"),
    "mpk.gz": (".messagepack", "NamedMpkGzRecorder"),
    "safetensors": (".safetensors", "SafetensorsRecorder"),
}
"""Loaded when a file of that kind is met."""


def known_suffixes() -> tuple[str, ...]:
    """The suffixes of the formats in this package."""
    return tuple(_READERS)


def is_known(suffix: str, own: Recorder | None = None) -> bool:
    """Whether files of this suffix can be read."""
    return suffix in _READERS or (own is not None and own.suffix == suffix)


def recorder_for(suffix: str, own: Recorder | None = None) -> Recorder:
    """The recorder that reads files of a known suffix; a run's own one first."""
    if own is not None and own.suffix == suffix:
        return own
    module, name = _READERS[suffix]
    recorder: Recorder = getattr(import_module(module, __package__), name)()
    return recorder


def save(value: Any, path: str | os.PathLike[str], *, recorder: Recorder | None = None) -> Path:
    """Write a nested value (a `state_dict`, or dicts and lists of tensors, numbers and texts) into one file.

    When it returns, the bytes are on the disk. An existing file of that name is replaced in one step: a
    reader finds the old file or the new one, also after a power failure.

    Args:
        value: tensors and plain values, in dicts, lists and tuples.
        path: the end of its name chooses the format: ".h5", ".mpk.gz" or ".safetensors".
        recorder: another format, or one with options: `Hdf5Recorder(precision="half")`.

    Raises:
        CheckpointError: the format cannot hold a part of the value, or no format has this end of a name.

    >>> import tempfile
    >>> import torch
    >>> from notebook_learner.checkpoint import load, save
    >>> model = torch.nn.Linear(2, 1)
    >>> path = save({"model": model.state_dict(), "epoch": 3}, tempfile.mkdtemp() + "/mine.h5")
    >>> kept = load(path)
    >>> model.load_state_dict(kept["model"])
    <All keys matched successfully>
    >>> kept["epoch"]
    3
    """
    path = Path(path)
    encoded = _recorder(path, recorder).encode(value, path.name)
    durable.replace(path, encoded.pieces, encoded.size)
    return path


def load(path: str | os.PathLike[str], *, recorder: Recorder | None = None) -> Any:
    """Load the value that `save` wrote, or that a file of a run's checkpoint holds.

    Tensors are on the CPU; tensors that were saved in half precision have 16 bits. No code from the file is
    run, so it may be a stranger's.

    Args:
        path: the end of its name says the format.
        recorder: the recorder that reads the file, if your own recorder wrote it.

    Raises:
        DamagedError: the file is damaged, or has another format.
        CheckpointError: no format has this end of a name.
    """
    path = Path(path)
    reader = _recorder(path, recorder)
    with durable.opened(path) as file:
        return reader.decode(file).value


def _recorder(path: Path, given: Recorder | None) -> Recorder:
    if given is not None:
        return given
    for suffix in known_suffixes():
        if path.name.endswith(f".{suffix}"):
            return recorder_for(suffix)
    endings = ", ".join(f".{suffix}" for suffix in known_suffixes())
    raise CheckpointError(
        f"{path}: the end of the name must say the format: {endings}; give it one of these, "
        "or name the format, recorder=Hdf5Recorder()"
    )

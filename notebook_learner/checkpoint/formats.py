"""Chooses the recorder that reads a file by the end of the file's name."""

from __future__ import annotations

from importlib import import_module

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

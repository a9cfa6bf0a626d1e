"""Checkpoints: the file formats, which of them stay, and the folder they lie in.

In come nested values of tensors; out go files that exist whole or not at all, and the same values again.
Nothing here knows what a value means, and nothing that a file says is believed before it was checked.


>>> from notebook_learner.checkpoint import Hdf5Recorder, KeepAny, KeepBest, KeepLast
>>> KeepAny(KeepLast(2), KeepBest("Accuracy", "valid")) == KeepAny(KeepLast(2), KeepBest("Accuracy"))
True
"""

from .folder import CheckpointFolder
from .hdf5 import CompactRecorder, Hdf5Recorder
from .info import CheckpointInfo
from .messagepack import NamedMpkGzRecorder
from .recorder import Decoded, Encoded, Recorder
from .safetensors import SafetensorsRecorder
from .single_file import load, save
from .strategy import KeepAll, KeepAny, KeepBest, KeepEvery, KeepLast, Strategy

__all__ = [
    "CheckpointFolder",
    "CheckpointInfo",
    "CompactRecorder",
    "Decoded",
    "Encoded",
    "Hdf5Recorder",
    "KeepAll",
    "KeepAny",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "NamedMpkGzRecorder",
    "Recorder",
    "SafetensorsRecorder",
    "Strategy",
    "load",
    "save",
]

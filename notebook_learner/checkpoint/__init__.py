"""Checkpoints: the file formats, the rules that keep or delete them, and their folder.

The input is nested values of tensors. The output is files that exist whole or not at all, and the same values
when they are read. No module here knows what a value means, and each value of a file is checked before use.


>>> from notebook_learner.checkpoint import Hdf5Recorder, KeepAny, KeepBest, KeepLast
>>> KeepAny(KeepLast(2), KeepBest("Accuracy", "valid")) == KeepAny(KeepLast(2), KeepBest("Accuracy"))
True
"""

from .folder import CheckpointFolder
from .formats import load, save
from .hdf5 import CompactRecorder, Hdf5Recorder
from .info import CheckpointInfo
from .messagepack import NamedMpkGzRecorder
from .recorder import Decoded, Encoded, Recorder
from .safetensors import SafetensorsRecorder
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

"""What the processes of a run must have in common: versions, the user's files, and torch's settings."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import multiprocessing


def versions() -> tuple[str, str]:
    """The versions that ranks need in common to understand each other's messages."""
    return ".".join(map(str, sys.version_info[:2])), torch.__version__.partition("+")[0]


_INSTALLED = ("site-packages", "dist-packages")


class Files:
    """The source files of the imported modules, with their times when they were first seen."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def look(self) -> None:
        """Add the files of modules that were imported since the last call."""
        for file in _own_files():
            if file not in self._times:
                self._times[file] = _time_of(file)

    def changed(self) -> bool:
        """Whether a file was edited since: a process that has imported it runs the old code."""
        return any(_time_of(file) != time for file, time in self._times.items())


def _own_files() -> Iterator[str]:
    """The files that do not belong to an installed package: users edit their own files."""
    library = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(library) and not any(p in file for p in _INSTALLED):
            yield file


def _time_of(file: str) -> int:
    with suppress(OSError):
        return os.stat(file).st_mtime_ns
    return 0  # it is gone, or is in an archive


Getter = Callable[[], Any]
Setter = Callable[[Any], Any]


def _attribute(owner: Any, name: str) -> tuple[Getter, Setter]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _flushes() -> bool:
    """Whether the CPU treats denormal numbers as zero: torch sets that, but no call of torch returns it."""
    return float(torch.tensor(5e-324, dtype=torch.float64, device="cpu") * 1) == 0.0


def _set_device(device: str) -> None:
    torch.set_default_device(None if device == "cpu" else device)  # one that is set costs each call of torch


def _set_deterministic(wanted: tuple[bool, bool]) -> None:
    on, warns = wanted
    torch.use_deterministic_algorithms(on, warn_only=warns)


def _set_interop(count: int) -> None:
    with suppress(RuntimeError):  # torch already uses these threads
        torch.set_num_interop_threads(count)


def _set_start(method: str | None) -> None:
    if method is not None:
        multiprocessing.set_start_method(method, force=True)


_SETTINGS: dict[str, tuple[Getter, Setter]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "interop threads": (torch.get_num_interop_threads, _set_interop),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "device": (lambda: str(torch.get_default_device()), _set_device),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
    ),
    "filled memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "denormals": (_flushes, torch.set_flush_denormal),
    "cudnn": _attribute(torch.backends.cudnn, "enabled"),
    "cudnn benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "cudnn deterministic": _attribute(torch.backends.cudnn, "deterministic"),
    "cudnn tf32": _attribute(torch.backends.cudnn, "allow_tf32"),
    "cuda tf32": _attribute(torch.backends.cuda.matmul, "allow_tf32"),
    "cuda fp16 sums": _attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "cuda bf16 sums": _attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "cudnn attention": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "plain attention": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "workers start by": (lambda: multiprocessing.get_start_method(allow_none=True), _set_start),
    "workers share by": (multiprocessing.get_sharing_strategy, multiprocessing.set_sharing_strategy),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}
_OF_ONE_RANK = ("threads", "interop threads")


def ambient() -> dict[str, Any]:
    """All of these settings in this process.

    >>> ambient()["dtype"]
    torch.float32
    """
    found = {}
    for name, (get, _) in _SETTINGS.items():
        with suppress(Exception):  # torch lacks it, or has it in two ways that contradict each other
            found[name] = get()
    return found


def of_all_ranks() -> dict[str, Any]:
    """Those that ranks have in common: each has its own part of the cores, and sees one device.

    >>> "dtype" in of_all_ranks(), "threads" in of_all_ranks()
    (True, False)
    """
    found = {name: value for name, value in ambient().items() if name not in _OF_ONE_RANK}
    if found.get("device", "").startswith("cuda"):
        found["device"] = "cuda:0"
    return found


def surround(known: dict[str, Any]) -> list[str]:
    """Apply settings of another process here; a setting that already has its value is left alone. Return the
    names of those that have another value afterwards."""
    missed = []
    for name, value in known.items():
        get, put = _SETTINGS[name]
        with suppress(Exception):
            if get() != value:
                put(value)
            if get() == value:
                continue
        missed.append(name)
    return missed

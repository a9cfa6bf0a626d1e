"""Where a run trains: versions, work tree, threads, flags and hardware; no environment variable is read."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

MOST_OF_A_DIFF = 64_000
"""Characters of a work tree's changes that are kept."""
_PATIENCE = 5.0
"""Seconds for git, which may hang on a network file system."""
_FRESH = 2.0
"""Seconds for which the changes of a work tree count as known: cells that build many learners ask often."""
_DIST = re.compile(r"([A-Za-z0-9._-]+)-([^-]+)\.(?:dist|egg)-info")


def threads_and_flags() -> dict[str, Any]:
    """What decides the last bits, apart from the program."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "default_dtype": str(torch.get_default_dtype()),
    }


def hardware() -> dict[str, Any]:
    """The machine's processor, memory, and devices if they are in use."""
    import psutil

    told: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        told["devices"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return told


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    return platform.processor()


# Versions --------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """The version of each distribution of which a module is imported, and Python's.

    >>> found = versions()
    >>> found["torch"] == torch.__version__.partition("+")[0], "python" in found
    (True, True)
    """
    imported = {name.partition(".")[0].lower() for name in [*sys.modules]}
    found = {"python": platform.python_version()}
    for folder in filter(None, dict.fromkeys(sys.path)):
        for name, version, place in _distributions(folder):
            if name not in found and (name.replace("-", "_") in imported or _modules_of(place) & imported):
                found[name] = version
    found["torch"] = str(torch.__version__).partition("+")[0]
    return dict(sorted(found.items()))


def _distributions(folder: str) -> Iterator[tuple[str, str, str]]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    for each in sorted(names):
        if match := _DIST.fullmatch(each):
            yield match[1].replace("_", "-").lower(), match[2], os.path.join(folder, each)


def _modules_of(place: str) -> set[str]:
    """The modules that a distribution names as its own, in a file of a few bytes."""
    try:
        with open(os.path.join(place, "top_level.txt"), encoding="utf-8", errors="replace") as file:
            return {line.strip().lower() for line in file}
    except OSError:
        return set()


# The work tree ---------------------------------------------------------------------------------------

_asked = threading.Lock()
_known: dict[str, tuple[float, str | None]] = {}


def changes_in(folder: str | os.PathLike[str] = ".") -> str | None:
    """What differs from the commit in the work tree of a folder, as a diff; None if git cannot tell."""
    place = os.path.realpath(folder)
    with _asked:
        at, known = _known.get(place, (0.0, None))
        if time.monotonic() - at > _FRESH or not at:
            known = _diff(place)
            _known[place] = time.monotonic(), known
        return known


def _diff(place: str) -> str | None:
    if not any((above / ".git").exists() for above in (Path(place), *Path(place).parents)):
        return None
    # A repository may come from a stranger: no program that its configuration names is to run.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", place]
    command += ["diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short"]
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ) as git:
            assert git.stdout is not None
            timer = threading.Timer(_PATIENCE, git.kill)
            timer.start()
            try:
                text = git.stdout.read(4 * MOST_OF_A_DIFF)
                git.stdout.close()
            finally:
                timer.cancel()
                git.kill()
    except OSError:  # there is no git here
        return None
    return text.decode(errors="replace")[:MOST_OF_A_DIFF]

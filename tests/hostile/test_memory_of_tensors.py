"""What reading a large file takes in memory: no more than twice its size, whatever it is made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile_run import RECORDERS
from hostile_watched import SPARE

from notebook_learner.checkpoint import save
from notebook_learner.store.budget import LARGEST_CHUNK

READER = """
import sys
from pathlib import Path
from notebook_learner.checkpoint import load

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))

load(sys.argv[1])  # what is imported for it has nothing to do with its size
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
value = load(sys.argv[2])
print(memory("VmHWM") - before)
"""


def nothing_in_half_of_it(rows: int) -> torch.Tensor:
    """Bytes that shrink, and not below half."""
    data = np.random.RandomState(0).randint(1, 256, (rows, LARGEST_CHUNK), dtype=np.uint8)
    data[:, ::2] = 0
    data[:, : LARGEST_CHUNK // 16] = 0
    return torch.from_numpy(data)


VALUES: dict[str, Any] = {
    "bytes": lambda: {"weight": nothing_in_half_of_it(8)},
    "in another order": lambda: {
        "weight": nothing_in_half_of_it(8).view(8, 8, 1024, 1024).to(memory_format=torch.channels_last)
    },
    "zeros beside noise": lambda: {
        "zeros": torch.zeros(8 << 20),
        "noise": torch.randint(0, 256, (16 << 20,), dtype=torch.uint8),
    },
    "numbers": lambda: {"weight": torch.randn(10, LARGEST_CHUNK // 4)},
}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((kind, "bytes") for kind in ("h5", "gzip", "zstd", "mpk")),
        *((kind, "in another order") for kind in ("zstd", "mpk", "safetensors")),
        *((kind, "zeros beside noise") for kind in ("gzip", "mpk")),
        ("half", "numbers"),
    ],
)
@pytest.mark.rounds(3)
def test_a_file_of_ours_is_read_in_twice_its_size(kind: str, value: str, tmp_path: Path) -> None:
    recorder = RECORDERS[kind]()
    small, large = (tmp_path / f"{name}.{recorder.suffix}" for name in ("small", "large"))
    save({"weight": torch.zeros(1000)}, small, recorder=recorder)
    size = save(VALUES[value](), large, recorder=recorder).stat().st_size
    ran = subprocess.run(
        [sys.executable, "-c", READER, small, large], capture_output=True, text=True, check=True
    )
    assert 0.9 * size < int(ran.stdout) < 2 * size + SPARE

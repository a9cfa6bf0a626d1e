"""On a machine without a GPU, tests/gpu runs on a stand-in for CUDA, in two processes of its own.

The stand-in takes CUDA's place in a process for good, and the other tests of this process must see no GPU.
Two, for two workers: a process for each file would take longer to import torch than to test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent / "gpu"
FILES = sorted(FOLDER.glob("test_*.py"))

on_a_cpu = pytest.mark.skipif(
    torch.cuda.is_available() or torch.version.cuda is not None or sys.platform != "linux",
    reason="there is a GPU, or this torch is built for one, or this is not Linux",
)


def pytest_in_a_process_of_its_own(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False
    )


@on_a_cpu
@pytest.mark.needs_program("g++")
@pytest.mark.timeout(900)  # it may have to build the stand-in
@pytest.mark.parametrize("half", [0, 1])
def test_on_the_stand_in_for_cuda(half: int) -> None:
    done = pytest_in_a_process_of_its_own(*FILES[half::2])
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    assert " passed" in done.stdout


@on_a_cpu
@pytest.mark.needs_program("g++")
def test_this_process_sees_no_gpu_and_collects_no_test_of_one() -> None:
    done = pytest_in_a_process_of_its_own("--collect-only", FOLDER, Path(__file__))
    assert f"{Path(__file__).name}::" in done.stdout and "gpu/test_" not in done.stdout
    assert not torch.cuda.is_available()


@on_a_cpu
def test_without_a_compiler_they_are_left_out_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    done = pytest_in_a_process_of_its_own("-rs", FOLDER / "test_data_on_cuda.py")
    assert done.returncode == 0 and " passed" not in done.stdout
    assert "needs a C++ compiler: sudo apt install g++" in done.stdout

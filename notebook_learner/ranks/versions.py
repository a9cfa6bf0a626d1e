"""The versions in a process that all ranks have to have in common."""

from __future__ import annotations

import sys

import torch


def versions() -> tuple[str, str]:
    """The versions that ranks need in common to understand each other's messages."""
    return ".".join(map(str, sys.version_info[:2])), torch.__version__.partition("+")[0]

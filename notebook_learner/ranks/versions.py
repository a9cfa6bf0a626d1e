"""What runs in a process, as far as ranks have to have it in common."""

from __future__ import annotations

import sys

import torch


def versions() -> tuple[str, str]:
    """What ranks have to have in common to understand each other."""
    return ".".join(map(str, sys.version_info[:2])), torch.__version__.partition("+")[0]

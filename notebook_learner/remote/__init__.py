"""Steering a run from another process: a terminal (`notebook-learner ctl`), or a second notebook."""

from .client import control
from .protocol import Answer

__all__ = ["Answer", "control"]

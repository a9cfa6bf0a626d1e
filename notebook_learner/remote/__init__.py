"""Steering a run from another process: a terminal (`notebook-learner ctl`), or a second notebook.

The input is requests from a fixed list, over a socket that only the run's owner can open. The output is
commands of `steering`, and one line of answer for each. Nothing here knows a Learner: the steered object has
the verbs of `steering.steered`.
"""

from ..steering.command import Answer
from .client import control

__all__ = ["Answer", "control"]

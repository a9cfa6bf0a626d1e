"""Steering a run from another process: a terminal (`notebook-learner ctl`), or a second notebook.

In come requests out of a fixed list, over a socket that only the run's owner can open; out go commands of
`steering`, and one line of answer each. Nothing here knows a Learner: what is steered has the verbs of
`steering.steered`.
"""

from ..steering.command import Answer
from .client import control

__all__ = ["Answer", "control"]

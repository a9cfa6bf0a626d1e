"""Steering a run from another process: a terminal (`notebook-learner ctl`), or a second notebook.

In come requests out of a fixed list, over a socket that only the run's owner can open; out go commands, and
one line of answer each. Nothing here knows a Learner: what is steered is whatever has the verbs of
`steering`.
"""

from .client import control
from .protocol import Answer

__all__ = ["Answer", "control"]

"""`%load_ext notebook_learner`: a notebook cell becomes the training step, and magics steer it.

In come the text of a cell and the notebook's names; out go a step, and calls of a Learner's verbs. Nothing is
kept in the shell that unloading does not take out again.
"""

from .extension import load, unload

__all__ = ["load", "unload"]

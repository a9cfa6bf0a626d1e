"""`%load_ext notebook_learner`: a notebook cell becomes the training step, and magics steer the training.

The text of a cell and the notebook's names come in; a step, and calls of a Learner's verbs, go out. Unloading
removes everything that loading put into the shell.
"""

from .extension import load, unload

__all__ = ["load", "unload"]

"""`%load_ext notebook_learner`: a notebook cell becomes the training step, and magics steer it."""

from .extension import load, unload

__all__ = ["load", "unload"]

"""Generators of random numbers that steps have made: what a file says of them, checked before it is used."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_BIT_GENERATORS = {
    each.__name__: each
    for each in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def made(about: Any) -> Any:
    """A new generator, by what a file says of it."""
    if isinstance(about, list):
        return np.random.Generator(_BIT_GENERATORS[about[1]]())
    if about == "RandomState":
        return np.random.RandomState()
    if about in _BIT_GENERATORS:
        return _BIT_GENERATORS[about]()
    return random.Random() if about == "Random" else torch.Generator(about)


def checked(live: Any, state: Any) -> Any:
    """The state, after a new generator of this kind took it. NumPy does not check a place in its table, and
    would read memory that is not its own."""
    if isinstance(live, torch.Generator):
        torch.Generator(live.device).set_state(state)
        return state
    if isinstance(live, random.Random):
        state = _as_tuples(state)
        random.Random().setstate(state)
        return state
    if not isinstance(state, Mapping):
        raise ValueError("no generator")
    inner = state["state"]
    if state["bit_generator"] == "MT19937" and not (type(inner["pos"]) is int and 0 <= inner["pos"] <= 624):
        raise ValueError("a generator outside its table")
    if isinstance(live, np.random.RandomState):
        np.random.RandomState().set_state(dict(state))
        return state
    generator = live.bit_generator if isinstance(live, np.random.Generator) else live
    type(generator)().state = state
    return state


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value

"""Which kind an object is of: one that is kept, one that is left alone, or one that cannot be kept."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import io
import pathlib
import random
import re
import threading
import types
import uuid
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from .hooks import HandleKind
from .iterators import IteratorKind, is_iterator
from .kinds import (
    AttributesKind,
    Batches,
    BatchesKind,
    CellKind,
    ClassKind,
    ConstantKind,
    DictKind,
    FilledKind,
    FunctionKind,
    GeneratorKind,
    GetSet,
    GlobalKind,
    GlobalName,
    Kind,
    SequenceKind,
    SetKind,
    StateDictKind,
    slots_of,
)
from .memory import ArrayKind, Room, TensorKind
from .reading import is_users_class, is_users_function
from .untouched import TableKind

PLAIN = (
    *(int, float, bool, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, np.dtype, np.generic),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction),
    *(enum.Enum, pathlib.PurePath, re.Pattern, uuid.UUID, frozenset),
)
"""Values that never change."""

_LEFT = (
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.MappingProxyType, types.FrameType),
    *(property, staticmethod, classmethod, weakref.ref, DataLoader, torch.Event, torch.Stream),
    *(type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.local),
    *(types.WrapperDescriptorType, types.MethodWrapperType, types.MethodDescriptorType, types.TracebackType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.GenericAlias, BaseException, np.ufunc),
)
"""What holds nothing that a step computes with."""

_SINKS = {
    *(
        "_csv",
        "csv",
        "logging",
        "tqdm",
        "matplotlib",
        "IPython",
        "ipykernel",
        "ipywidgets",
        "traitlets",
        "anywidget",
        "rich",
    ),
    *("wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "aim", "clearml", "swanlab"),
    *(
        "notebook_learner",
        "plotly",
        "bokeh",
        "seaborn",
        "altair",
        "contextlib",
        "unittest",
        "pytest",
        "_pytest",
    ),
}
"""Packages whose objects show or log what a step computes. Nothing flows back from them."""
_INNER = (
    "torch.utils.tensorboard",
    "torch.distributed",
    "torch.jit",
    "torch.profiler",
    "torch._dynamo",
    "torch._inductor",
    "torch._ops",
    "torch.autograd",
)
_READ = {
    *("pandas", "pyarrow", "polars", "PIL", "h5py", "zarr", "datasets", "tokenizers", "xarray", "netCDF4"),
    *("sqlite3", "lmdb", "duckdb"),
}
"""Packages whose objects hold data that steps only read, or lead to a database, which is in no state."""

_GENERATORS = (
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
)
_OWN_OF_MODULES = frozenset(vars(nn.Module()).keys() - {"training"})
_OWN_OF_OPTIMIZERS = frozenset(
    {"state", "param_groups", "defaults", "_hook_for_profile", "_zero_grad_profile_name"}
)
_HOOKS_OF_OPTIMIZERS = frozenset(
    f"_optimizer_{name}_hooks"
    for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre")
) | {"_optimizer_load_state_dict_post_hooks", "_step_count", "_opt_called", "step"}

_FROM_WEIGHTS = {"training", "_compiled_call_impl", "_flat_weights"}
"""What other parts hold, or torch makes of the parameters."""

OWN_MODULE = AttributesKind("module", _OWN_OF_MODULES | _FROM_WEIGHTS)
"""A module of the model in training: its tensors are in another part of the state."""
HIDDEN_OF_OPTIMIZERS = _OWN_OF_OPTIMIZERS | _HOOKS_OF_OPTIMIZERS
OWN_OPTIMIZER = AttributesKind("optimizer", HIDDEN_OF_OPTIMIZERS)
_OBJECT, _MODULE, _OPTIMIZER = AttributesKind(), AttributesKind("module"), AttributesKind("optimizer")
_REPORTED = AttributesKind("optimizer", frozenset({"step", "_opt_called"}))
"""One whose `step` a scheduler has wrapped: the wrapper only notes the call, and knows the optimizer."""
_CONSTANT, _LIST, _DEQUE, _DICT, _SET = (
    ConstantKind(),
    SequenceKind("list"),
    SequenceKind("deque"),
    DictKind(),
    SetKind(),
)
_FUNCTION, _CLASS, _CELL, _GLOBAL, _GENERATOR, _TOLD, _PLACE = (
    *(
        FunctionKind(),
        ClassKind(),
        CellKind(),
        GlobalKind(),
        GeneratorKind(),
        StateDictKind(),
        IteratorKind(),
    ),
)
_TABLE = TableKind()
_PYTHON = 1 << 9
"""The flag of a class that was made by Python code, or can be changed like one."""


def is_reported(step: Any) -> bool:
    """Whether it is a scheduler's wrapper of an optimizer's `step`."""
    return hasattr(step, "_wrapped_by_lr_sched")


class Unknown(str):
    """Why an object cannot be kept."""


class Classes:
    """Says of each object how it is kept."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._tensors = TensorKind(room)
        self._cut = False
        self._arrays = ArrayKind(room)
        self._of_type: dict[type, Kind | Unknown | None] = {}

    def leave_weights(self) -> None:
        """Look into no parameters, wherever they are reached. Those of the model are cut into parts while
        steps run, so their memory comes and goes; and nothing tells them from those of another network."""
        self._cut = True

    def kind_of(self, live: Any) -> Kind | Unknown | None:
        """The kind; None if it holds nothing that changes; or why it cannot be kept."""
        kind = type(live)
        if kind in self._of_type:
            return self._of_type[kind]
        found, depends = self._looked_at(live)
        if not depends:
            self._of_type[kind] = found
        return found

    def _looked_at(self, live: Any) -> tuple[Kind | Unknown | None, bool]:
        """The kind, and whether another object of this type may be of another kind."""
        if isinstance(live, GetSet):
            return _TOLD, False
        if isinstance(live, Tensor):
            cut = self._cut and (isinstance(live, nn.Parameter) or type(live).__name__ == "DTensor")
            return (None if cut else self._tensors), False
        if isinstance(live, np.ndarray):
            return self._arrays, False
        if isinstance(live, PLAIN):
            return None, False
        if self._cut and isinstance(live, nn.Module) and any(True for _ in live.parameters()):
            return Unknown('has weights of its own, and strategy("fsdp") keeps those of the model only'), True
        if isinstance(live, type):
            return (_CLASS if is_users_class(live) else None), True
        if isinstance(live, types.FunctionType):
            follows = is_users_function(live) or live.__closure__
            return (_FUNCTION if follows else None), True
        if isinstance(live, _GENERATORS):
            return (None if _is_global(live) else _GENERATOR), True
        if isinstance(live, io.IOBase):
            return (Unknown("is an open file that is read") if _is_read(live) else None), True
        for types_, found in _KINDS:
            if isinstance(live, types_):
                return found, False
        if is_iterator(live):
            return _place_of(live), True
        if isinstance(live, Optimizer):
            return (_REPORTED if is_reported(vars(live).get("step")) else _OPTIMIZER), True
        return _kind_of_object(live), False


def _is_global(live: Any) -> bool:
    """Whether it is one of the generators that the run's own random stream holds."""
    if isinstance(live, torch.Generator):
        return live is torch.default_generator or live in torch.cuda.default_generators
    if isinstance(live, random.Random):
        return live is random._inst or isinstance(live, random.SystemRandom)
    return live is np.random.mtrand._rand or live is np.random.mtrand._rand._bit_generator


def _is_read(file: io.IOBase) -> bool:
    try:
        return not file.closed and file.readable() and not file.writable()
    except (ValueError, OSError, AttributeError):
        return False


def _place_of(live: Any) -> Kind | Unknown:
    try:
        taken = _PLACE.take(live)
    except Exception as refused:
        return Unknown(f"cannot say where it is ({refused})")
    for _, part in _PLACE.parts(live, taken):
        if isinstance(part, (types.GeneratorType, _BaseDataLoaderIter)):
            return Unknown(f"goes over a {type(part).__name__.lstrip('_')} in the middle of its work")
    return _PLACE


_KINDS: tuple[tuple[Any, Kind | Unknown | None], ...] = (
    (types.CellType, _CELL),
    (GlobalName, _GLOBAL),
    (Batches, BatchesKind()),
    ((types.MethodType, functools.partial), _CONSTANT),
    (RemovableHandle, HandleKind()),
    (_LEFT, None),
    (types.GeneratorType, Unknown("is a generator in the middle of its work")),
    (_BaseDataLoaderIter, Unknown("is a loader's iterator in the middle of its work")),
    (types.SimpleNamespace, _OBJECT),
    ((types.CoroutineType, types.AsyncGeneratorType), Unknown("is a coroutine")),
    (threading.Thread, Unknown("is a thread")),
    (torch.cuda.CUDAGraph, Unknown("is a CUDA graph")),
    (torch.UntypedStorage, Unknown("is memory without a tensor")),
)


def _kind_of_object(live: Any) -> Kind | Unknown | None:
    kind = type(live)
    root = kind.__module__.split(".")[0]
    if root == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return _TABLE
    if root in _SINKS or kind.__module__.startswith(_INNER) or root in _READ or kind.__module__ == "torch":
        return None
    if isinstance(live, (list, deque, dict, set)):
        content = _content_of(live)
        return content if kind.__module__ in ("builtins", "collections") else FilledKind(content)
    if isinstance(live, tuple):
        return _CONSTANT
    if isinstance(live, nn.Module):
        return _MODULE
    if not isinstance(live, LRScheduler) and _says_itself(live):
        return _TOLD
    holds_nothing = not hasattr(live, "__dict__") and not slots_of(kind)
    if kind is object or (holds_nothing and kind.__module__ == "_abc"):
        return None
    if holds_nothing or _is_of_c(kind):
        return Unknown("has no state_dict")
    return _OBJECT


def _content_of(live: Any) -> Kind:
    if isinstance(live, dict):
        return _DICT
    return _SET if isinstance(live, set) else _LIST if isinstance(live, list) else _DEQUE


def _says_itself(live: Any) -> bool:
    return callable(getattr(live, "state_dict", None)) and callable(getattr(live, "load_state_dict", None))


def _is_of_c(kind: type) -> bool:
    """Whether objects of a class may hold something that only C code sees."""
    return any(each is not object and not each.__flags__ & _PYTHON for each in kind.__mro__)

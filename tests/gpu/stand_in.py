"""A stand-in for CUDA, for a machine without a GPU: torch's CUDA key, served by the CPU's kernels.

`load()` puts it in CUDA's place, in this process, for good; `why_not()` says why it cannot. stand_in.cpp is
its C++. What it claims about CUDA, and where torch's source says so (test_stand_in.py checks it, also on a
GPU):

- A tensor of the host among a device's is an error; one without dimensions may be an operand, but no result:
  c10/core/impl/DeviceGuardImplInterface, common_device_check_failure; ATen/TensorIterator.cpp,
  compute_types.
- An index may lie on the host, and is copied, which waits: ATen/native/TensorAdvancedIndexing, make_info.
- `.item()` waits: ATen/native/cuda/CUDAScalar.cu, _local_scalar_dense_cuda.
- A copy between host and device waits, unless it is non_blocking: ATen/native/cuda/Copy.cu,
  copy_kernel_cuda. A non_blocking one is under way if its host's side is pinned and contiguous, also where
  the dtype changes: the same file, copy_requires_temporaries; of other memory, see "API synchronization
  behavior" in the CUDA runtime's manual.
- `.to("cpu", non_blocking=True)` takes pinned memory: ATen/native/TensorConversions.cpp, _to_copy.
- A copy between devices makes their streams wait for each other: ATen/native/cuda/Copy.cu,
  copy_device_to_device.
- nonzero, masked_select, a mask as an index, equal, bincount and unique wait: Nonzero.cu, Equal.cpp,
  SummaryOps.cu and Unique.cu in ATen/native/cuda; ATen/native/IndexingUtils.h, expandTensors.
- Sync debug mode speaks of all of these and of Stream.synchronize, but not of Event.synchronize, of
  torch.cuda.synchronize, or of non_blocking copies of memory that is not pinned: c10/cuda/CUDAFunctions.h,
  memcpy_and_sync and stream_synchronize; ATen/cuda/CUDAEvent.h, synchronize.
- An event orders streams, and nothing else does: torch's own streams do not wait for the default one:
  c10/cuda/CUDAStream.cpp, cudaStreamNonBlocking.
- Memory goes back to the stream that it was allocated on, unless record_stream says who else uses it; sizes
  are counted in 512 bytes; a limit holds: c10/cuda/CUDACachingAllocator.cpp, free, recordStream,
  kMinBlockSize, setMemoryFraction.
- A generator is a seed and an offset, 16 bytes: ATen/cuda/CUDAGeneratorImpl.cpp, get_state.
- What a graph records computes and draws nothing until it is played, and a wait in it is an error:
  ATen/cuda/CUDAGraph.cpp, capture_begin and replay.

What it does not have: speed, memory that is reused (a graph's, or a freed block's), the numbers of CUDA's
kernels and of its generators, algorithms that are not deterministic, NCCL, and work that fails later than
its call.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

SOURCE = Path(__file__).with_name("stand_in.cpp")
KINDS = (
    "item",
    "copy to the host",
    "copy to the device",
    "kernel",
    "stream",
    "device",
    "event",
    "copy of memory that is not pinned",
    "under way",
)
"""What is told of, in the order of the source's enum. The last one is no wait."""

# Building it ------------------------------------------------------------------------------------------------


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def why_not() -> str:
    """Why CUDA cannot be stood in for here, or ""."""
    if torch.cuda.is_available():
        return "there is a GPU"
    if hasattr(torch._C, "_cuda_getDeviceCount"):
        return "this torch is built for CUDA: the stand-in needs one for the CPU alone"
    if sys.platform != "linux":
        return "the stand-in for CUDA is built on Linux alone"
    if compiler() is None:
        return "the stand-in for CUDA needs a C++ compiler: sudo apt install g++"
    return ""


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "notebook_learner" / "stand_in"


def built() -> Path:
    """The library for this torch and this source: built once, by one process, while others wait for it."""
    key = hashlib.sha256(f"{torch.__version__} {sys.platform}".encode() + SOURCE.read_bytes()).hexdigest()[
        :16
    ]
    folder = _cache()
    library = folder / f"torch-{torch.__version__}-{key}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not library.exists():
            _build(library)
    return library


def _build(library: Path) -> None:
    home = _torch_folder()
    partial = library.with_suffix(f".{os.getpid()}.partial")
    command = [
        *(compiler() or "g++", "-std=c++20", "-O1", "-g0", "-shared", "-fPIC", "-w"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"),
        *(str(SOURCE), "-o", str(partial), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"),
        f"-Wl,-rpath,{home / 'lib'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the stand-in for CUDA could not be built:\n{done.stderr[-4000:]}")
    partial.replace(library)


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


# What is told of --------------------------------------------------------------------------------------------

Place = tuple[str, int, str]  # file, line, function


@dataclass(frozen=True)
class Told:
    """A wait, or a copy that was sent on its way."""

    kind: str
    detail: str
    stack: tuple[Place, ...]
    """The innermost first."""

    @property
    def waits(self) -> bool:
        """Whether the host waited."""
        return self.kind != KINDS[-1]

    def place(self, inside: str = "notebook_learner/") -> str:
        """The innermost place in files of the package (or in others), and the one below that it called."""
        below: Place | None = None
        for each in self.stack:
            if inside in each[0]:
                where = f"{each[0].rpartition(inside)[2]}:{each[1]} {each[2]}"
                return where if below is None else f"{where} <- {_short(below)}"
            below = each
        return _short(self.stack[0]) if self.stack else "a thread without Python"


def _short(place: Place) -> str:
    return f"{place[0].rpartition('site-packages/')[2]}:{place[1]} {place[2]}"


_heard: list[list[Told]] = []


@contextmanager
def listening() -> Iterator[list[Told]]:
    """Gives a list to which all waits and copies in here are added, of every thread."""
    told: list[Told] = []
    _heard.append(told)
    try:
        yield told
    finally:
        _heard[:] = [each for each in _heard if each is not told]


def _hear(kind: int, detail: bytes) -> None:
    if not _heard:
        return
    frame = sys._getframe(1)
    if threading.current_thread() is not threading.main_thread() and frame.f_back is None:
        # A thread of autograd's: its place is where the main thread waits for it.
        frame = sys._current_frames().get(threading.main_thread().ident or 0, frame)
    stack: list[Place] = []
    walked: Any = frame
    while walked is not None:
        if walked.f_code.co_filename != __file__:
            stack.append((walked.f_code.co_filename, walked.f_lineno, walked.f_code.co_name))
        walked = walked.f_back
    told = Told(KINDS[kind], detail.decode(), tuple(stack))
    for each in _heard:
        each.append(told)


def faults() -> list[str]:
    """What the program did wrong that CUDA would not say, since the last call: a pinned source was written to
    while a copy of it was under way, memory was used or given back while another stream was at it."""
    found = []
    while text := _library().stand_in_fault():
        found.append(text.decode())
    return found


def under_way() -> int:
    """How many copies between pinned memory and a device nobody has waited for."""
    return int(_library().stand_in_under_way())


# In CUDA's place --------------------------------------------------------------------------------------------

_loaded: list[Any] = []
_kept: list[Any] = []  # callbacks that the library calls


def loaded() -> bool:
    """Whether this process has it."""
    return bool(_loaded)


def _library() -> Any:
    return _loaded[0]


def load() -> None:
    """Put it in CUDA's place. Nothing may have asked torch for a CUDA device in this process before."""
    if loaded():
        return
    if reason := why_not():
        raise RuntimeError(reason)
    library = ctypes.CDLL(str(built()), mode=ctypes.RTLD_GLOBAL)
    number, text = ctypes.c_int64, ctypes.c_char_p
    for name, answer, arguments in (
        ("capacity", number, []),
        ("stream", number, [ctypes.c_int]),
        ("set_stream", None, [ctypes.c_int, number]),
        ("synchronize", text, [ctypes.c_int]),
        ("limit", None, [ctypes.c_int, number]),
        ("statistics", None, [ctypes.c_int, ctypes.POINTER(number)]),
        ("under_way", number, []),
        ("fault", text, []),
        ("capture_begin", text, [number]),
        ("capture_end", text, []),
        ("replay", text, [number]),
        ("forget", None, [number]),
    ):
        function = getattr(library, f"stand_in_{name}")
        function.restype, function.argtypes = answer, arguments
    hear = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(_hear)
    _kept.append(hear)
    library.stand_in_listen(hear)
    _loaded.append(library)
    for name, value in _bindings(library).items():
        setattr(torch._C, name, value)
    _put_into_torch(library)


def _checked(problem: bytes | None) -> None:
    if problem is not None:
        raise RuntimeError(problem.decode())


def _bindings(library: Any) -> dict[str, Any]:
    """What torch.cuda calls in C++."""
    state = {"mode": 0}
    fractions = dict.fromkeys(range(library.stand_in_devices()), 1.0)

    def set_mode(mode: int) -> None:
        state["mode"] = mode
        library.stand_in_debug_mode(mode)

    def exchange(device: int) -> int:
        before = int(library.stand_in_device())
        if device >= 0:
            library.stand_in_set_device(device)
        return before

    def set_fraction(fraction: float, device: int) -> None:
        fractions[device] = fraction
        library.stand_in_limit(device, int(fraction * library.stand_in_capacity()))

    def stream(device: int) -> tuple[int, int, int]:
        return int(library.stand_in_stream(device)), device, _CUDA

    def initialize() -> None:
        made = []
        for index in range(library.stand_in_devices()):
            library.stand_in_give_default(1)
            try:
                made.append(torch.Generator(torch.device("cuda", index)))
            finally:
                library.stand_in_give_default(0)
        torch.cuda.default_generators = tuple(made)  # type: ignore[assignment]

    def nothing(*arguments: Any) -> None:
        return None

    return {
        "_has_cuda": True,
        "_cuda_init": initialize,
        "_cuda_getDeviceCount": lambda: int(library.stand_in_devices()),
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDevice": lambda: int(library.stand_in_device()),
        "_cuda_setDevice": exchange,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_hasPrimaryContext": lambda device: True,
        "_cuda_synchronize": lambda: _checked(library.stand_in_synchronize(-1)),
        "_cuda_set_sync_debug_mode": set_mode,
        "_cuda_get_sync_debug_mode": lambda: state["mode"],
        "_cuda_getCurrentStream": stream,
        "_cuda_getDefaultStream": lambda device: (0, device, _CUDA),
        "_cuda_getCurrentRawStream": lambda device: int(library.stand_in_stream(device)),
        "_cuda_setStream": lambda stream_id, device_index, device_type: library.stand_in_set_stream(
            device_index, stream_id
        ),
        "_cuda_memoryStats": lambda device: _statistics(library, device),
        "_cuda_resetPeakMemoryStats": lambda device: library.stand_in_forget_peak(device),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda device: fractions[device],
        "_cuda_emptyCache": nothing,
        "_host_emptyCache": nothing,
        "_cuda_ipc_collect": nothing,
        "_cuda_clearCublasWorkspaces": nothing,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_getCompiledVersion": lambda: 0,
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_isCurrentStreamCapturing": lambda: bool(library.stand_in_capturing()),
        "_graph_pool_handle": lambda: (0, next(_numbers)),
    }


_CUDA = 1  # c10::DeviceType::CUDA
_numbers = itertools.count(1)


def _statistics(library: Any, device: int) -> dict[str, Any]:
    """As c10::CachingDeviceAllocator::DeviceStats is given to Python. Nothing is kept that is not in use."""
    values = (ctypes.c_int64 * 8)()
    library.stand_in_statistics(device, values)
    now, peak, total, freed, blocks, most, refused, _ = values
    of_bytes = {"current": now, "peak": peak, "allocated": total, "freed": freed}
    of_blocks = {"current": blocks, "peak": most, "allocated": 0, "freed": 0}
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    return {
        "num_ooms": refused,
        "num_alloc_retries": refused,
        **{name: {"all": dict(of_bytes)} for name in names},
        **{name: {"all": dict(of_blocks)} for name in ("allocation", "segment", "active")},
    }


def _put_into_torch(library: Any) -> None:
    """What of torch.cuda is a class, or was bound when torch was imported."""
    cuda: Any = torch.cuda
    capacity = int(library.stand_in_capacity())

    def memory(device: int) -> tuple[int, int]:
        used = _statistics(library, device)["allocated_bytes"]["all"]["current"]
        return capacity - used, capacity

    def absent(*arguments: Any) -> None:
        raise RuntimeError("no NVML: this is a stand-in for CUDA")

    cuda._cudart = ModuleType("cudart")
    cuda._cudart.cudaMemGetInfo = memory
    cuda._is_in_bad_fork = lambda: False
    for name in ("_exchange_device", "_maybe_exchange_device"):
        setattr(cuda, name, torch._C._cuda_exchangeDevice)
    cuda._device_count_nvml = lambda: -1
    cuda._get_device_properties = lambda device: SimpleNamespace(
        name="a stand-in for CUDA", major=9, minor=0, total_memory=capacity, multi_processor_count=1
    )
    cuda.power_draw = cuda.utilization = cuda.temperature = absent
    cuda.graphs._cuda_isCurrentStreamCapturing = torch._C._cuda_isCurrentStreamCapturing
    cuda.graphs._graph_pool_handle = torch._C._graph_pool_handle
    for module in (cuda, cuda.streams):
        module.Stream, module.Event = Stream, Event
    for name, method in _graph_methods(library).items():
        setattr(torch._C._CUDAGraph, name, method)
    storage: Any = torch.UntypedStorage
    plain = storage.__new__

    def make(kind: Any, *arguments: Any, device: Any = None, **others: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return plain(kind, *arguments, **others, **({} if device is None else {"device": device}))
        size = arguments[0] if arguments else 0  # torch makes no storage there without CUDA's allocator
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    storage.__new__ = make


class Event(torch.Event):
    """As torch.cuda.Event. It keeps the time itself: torch.Event measures with its own class alone."""

    _when: float
    _timed: bool

    def __new__(cls, enable_timing: bool = False, *others: Any, **named: Any) -> Any:
        made: Any = super().__new__(cls, device="cuda", enable_timing=enable_timing)
        made._timed = enable_timing
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds between the two."""
        if not (self._timed and end_event._timed):
            raise ValueError("both events must be made with enable_timing=True")
        return float(end_event._when - self._when) * 1000

    def record(self, stream: Any = None) -> None:
        """Mark the work of a stream until now."""
        self._when = time.perf_counter()
        super().record(torch.cuda.current_stream() if stream is None else stream)

    def wait(self, stream: Any = None) -> None:
        """Let a stream's further work come after it."""
        super().wait(torch.cuda.current_stream() if stream is None else stream)


class Stream(torch.Stream):
    """As torch.cuda.Stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> Any:
        if "stream_id" in named:
            return super().__new__(cls, **named)
        index = torch.cuda._utils._get_device_index(device, optional=True)
        return super().__new__(cls, device=torch.device("cuda", index), priority=priority)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    @property
    def cuda_stream(self) -> int:
        """Its handle."""
        return self.stream_id

    def record_event(self, event: Any = None) -> Any:
        """Mark its work until now."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Let its further work come after the event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let its further work come after what that stream has by now."""
        self.wait_event(stream.record_event())


def _graph_methods(library: Any) -> dict[str, Callable[..., Any]]:
    """Those of torch._C._CUDAGraph."""

    def new(cls: Any, keep_graph: bool = False) -> Any:
        made = object.__new__(cls)
        made.number = next(_numbers)
        return made

    def reset(self: Any) -> None:
        library.stand_in_forget(self.number)

    return {
        "__new__": new,
        "__init__": lambda self, keep_graph=False: None,
        "capture_begin": lambda self, pool=None, capture_error_mode="global": _checked(
            library.stand_in_capture_begin(self.number)
        ),
        "capture_end": lambda self: _checked(library.stand_in_capture_end()),
        "replay": lambda self: _checked(library.stand_in_replay(self.number)),
        "pool": lambda self: (0, self.number),
        "reset": reset,
        "instantiate": lambda self: None,
    }

"""The machine of a process: OpenBLAS's matrix kernels, the usable cores, and the C library's memory."""

import atexit
import contextlib
import ctypes
import math
import os
import sys
from pathlib import Path
from typing import NoReturn

_STDOUT, _STDERR = 1, 2
_CPUINFO = Path("/proc/cpuinfo")
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_CPU_LIMITS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # cgroup v2 and v1
# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD (malloc.h), bytes. Its own, smaller defaults cost a sixth of the time
# that it takes to read vectors of 3072 floats. What is larger than a batch goes back to the system: kept among small
# pieces, a few large records took 120 MiB more.
_MALLOC_OPTIONS = {-3: 8 * 2**20, -1: 64 * 2**20}


def choose_kernels() -> None:
    """Ask for the AVX-512 kernels on AMD's processors that have it, unless OPENBLAS_CORETYPE is set.

    NumPy must not have been imported yet. An AMD processor that OpenBLAS does not know (Zen 5, as of 0.3.31) gets the
    kernels for Haswell, half as fast; on Intel's it knows better ones.
    """
    first, _, _ = (_CPUINFO.read_text() if _CPUINFO.exists() else "").partition("\n\n")
    if "AuthenticAMD" in first and set(first.split()) >= _AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def kernels() -> str:
    """The kernels in use, as a phrase; with a warning where they are older than the processor."""
    from threadpoolctl import threadpool_info

    names = {library["architecture"] for library in threadpool_info() if library["internal_api"] == "openblas"}
    in_use = " and ".join(sorted(names)) or "not OpenBLAS's"
    if names & {"Haswell", "Zen"} and _CPUINFO.exists() and set(_CPUINFO.read_text().split()) >= _AVX512:
        return f"{in_use} on an AVX-512 processor: half as fast; set OPENBLAS_CORETYPE=SkylakeX"
    return in_use


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores of the process's affinity, but no more than the CPU limit of its container, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in _CPU_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # another version of cgroups; `max`
            quota, period = map(int, " ".join((cgroup / name).read_text() for name in files).split())
            count = min(count, math.ceil(quota / period)) if quota > 0 else count  # -1: no limit
    return count


def keep_freed_memory() -> None:
    """Make the C library reuse the memory of one batch for the next, instead of returning it to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        for option, size in _MALLOC_OPTIONS.items():
            libc.mallopt(option, size)


def open_standard_streams() -> None:
    """Open those that are closed: else a file or a socket gets the number of one, and libraries write into it."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w")
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w")


def end_process(code: int) -> NoReturn:
    """End at once: while Python is finalised, a client's thread that wants to run Python ends it by a signal."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:  # the disk is full
        if not code:
            print("streampca:", error, file=sys.stderr)  # noqa: T201
            code = 1
    os._exit(code)

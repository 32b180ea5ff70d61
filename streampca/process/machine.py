"""Adapts a process to its machine: OpenBLAS's matrix kernels, usable cores, the C library's memory, its end."""

import atexit
import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

_STDOUT = 1
_STDERR = 2
_CPUINFO = Path("/proc/cpuinfo")
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_CGROUP_V2_LIMIT = ("cpu.max",)  # one file with quota and period
_CGROUP_V1_LIMIT = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
# Options of glibc's malloc, with their numbers in malloc.h and their values in bytes. glibc's own, smaller values cost
# a sixth of the time that it takes to read vectors of 3072 floats. M_MMAP_THRESHOLD is larger than a batch, so the
# memory of batches is reused. Larger pieces of memory go back to the system when they are freed: if they were kept, a
# few large records among small pieces would take 120 MiB more.
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_MALLOC_OPTIONS = {_M_MMAP_THRESHOLD: 8 * 2**20, _M_TRIM_THRESHOLD: 64 * 2**20}
_M_ARENA_MAX = -8  # how many heaps the threads share


def choose_openblas_kernels() -> None:
    """On an AMD processor with AVX-512, make OpenBLAS use its AVX-512 kernels, unless OPENBLAS_CORETYPE is set.

    Call it before NumPy is imported. OpenBLAS 0.3.31 chooses slower kernels for Zen 5.
    """
    cpuinfo = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    first_processor, _, _ = cpuinfo.partition("\n\n")
    if "AuthenticAMD" in first_processor and set(first_processor.split()) >= _AVX512:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def describe_openblas_kernels() -> str:
    """Return the names of OpenBLAS's kernels in use, with a warning if the processor could use faster kernels."""
    from threadpoolctl import threadpool_info

    names = {library["architecture"] for library in threadpool_info() if library["internal_api"] == "openblas"}
    in_use = " and ".join(sorted(names)) or "not OpenBLAS's"
    processor_flags = set(_CPUINFO.read_text().split()) if _CPUINFO.exists() else set()
    has_avx512 = processor_flags >= _AVX512
    are_slow = "Haswell" in names or "Zen" in names  # these kernels do not use AVX-512
    if has_avx512 and are_slow:
        return f"{in_use} on an AVX-512 processor: half as fast; set OPENBLAS_CORETYPE=SkylakeX"
    return in_use


def count_usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores the process may use, by its affinity and by the limit of its container."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    for files in (_CGROUP_V2_LIMIT, _CGROUP_V1_LIMIT):
        # Version 2 of cgroups has quota and period in one file, version 1 has a file for each. Without a limit, the
        # quota is "max" in version 2, −1 in version 1.
        with contextlib.suppress(OSError, ValueError):
            text = " ".join((cgroup / name).read_text() for name in files)
            quota, period = text.split()
            has_limit = int(quota) > 0
            if has_limit:
                count = min(count, math.ceil(int(quota) / int(period)))
    return count


def keep_freed_memory() -> None:
    """Make the C library (glibc) reuse the memory of one batch for the next, instead of returning it to the system."""
    _set_malloc_options(_MALLOC_OPTIONS)


def share_heap_between_threads() -> None:
    """Make all threads that start from now on use one heap of the C library (glibc).

    By default, each thread has a heap of its own, which retains the memory that the thread has freed: four large
    requests at once took 80 MiB more.
    """
    _set_malloc_options({_M_ARENA_MAX: 1})


def _set_malloc_options(options: Mapping[int, int]) -> None:
    """Set options of glibc's malloc, by their numbers. Another C library stays as it is."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for option, value in options.items():
            libc.mallopt(option, value)


def open_standard_streams() -> None:
    """Open each standard stream that is closed.

    If a stream stayed closed, the next file would get the stream's number, and libraries would print into this file.
    """
    # A new file gets the lowest free number.
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= _STDERR:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    # None: the stream was closed when Python began.
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w")
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w")


def end_process(code: int) -> NoReturn:
    """Run the exit functions, and then end the process at once. If stdout cannot be flushed, a code of 0 becomes 1.

    Python is not finalised, since a thread of a Kafka client could crash it.
    """
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        if code == 0:
            print("streampca:", error, file=sys.stderr)  # noqa: T201
            code = 1
    os._exit(code)

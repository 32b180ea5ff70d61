"""Number of processor cores that this process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path

_CPU_LIMITS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))  # cgroup v2 and v1


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores of the process's affinity, but no more than the CPU limit of its container, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in _CPU_LIMITS:
        with suppress(OSError, ValueError):  # another version of cgroups; `max`
            quota, period = map(int, " ".join((cgroup / name).read_text() for name in files).split())
            count = min(count, math.ceil(quota / period)) if quota > 0 else count  # -1: no limit
    return count

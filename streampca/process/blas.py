"""The choice of OpenBLAS's matrix kernels.

On an AVX-512 processor that it does not know (AMD's Zen 5, as of 0.3.31) it takes those for Haswell, half as fast.
"""

import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def choose_kernels() -> None:
    """Ask for the AVX-512 kernels on AMD's processors that have it, unless OPENBLAS_CORETYPE is set.

    NumPy must not have been imported yet. On Intel's processors OpenBLAS knows better ones.
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

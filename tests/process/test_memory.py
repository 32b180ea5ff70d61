"""Memory that one batch frees is reused by the next."""

import platform
import subprocess
import sys

import pytest

PAGES_PER_BATCH = 9 * 6 * 2**20 // 4096
PROGRAM = """
import resource, sys
from streampca.process import memory
if sys.argv[1] == "kept":
    memory.keep_freed_memory()
before = []
for _ in range(6):
    before.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    batch = [b"x" * (6 * 2**20) for _ in range(9)]
    del batch
print(before[-1] - before[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is configured")
def test_freed_memory_is_reused() -> None:
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, check=True).stdout)
        for mode in ("kept", "returned")
    )
    assert kept < PAGES_PER_BATCH / 4
    assert returned > PAGES_PER_BATCH, "the C library keeps freed memory by default"

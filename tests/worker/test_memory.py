"""What a batch frees is there for the next one."""

import platform
import subprocess
import sys

import pytest

PAGES_OF_A_ROUND = 3 * 18 * 2**20 // 4096
ROUNDS = """
import resource, sys
from streampca.commands import worker
if sys.argv[1] == "kept":
    worker.keep_freed_memory()
before = []
for _ in range(6):
    before.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    batch = [b"x" * (18 * 2**20) for _ in range(3)]
    del batch
print(before[-1] - before[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_memory_that_was_freed_is_used_again() -> None:
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", ROUNDS, way], capture_output=True, check=True).stdout)
        for way in ("kept", "given back")
    )
    assert kept < PAGES_OF_A_ROUND / 4
    assert given_back > PAGES_OF_A_ROUND, "the C library has learned it by itself"

"""OpenBLAS's kernels and the number of cores fit the machine, and the C library reuses memory."""

import os
import platform
from pathlib import Path

import pytest

from streampca.process import machine
from tests.command_line import output_of

FLAGS = "flags : fpu avx2 avx512f avx512dq avx512bw avx512vl"
PAGES_PER_BATCH = 9 * 6 * 2**20 // 4096
BATCHES = """
import resource, sys
from streampca.process import machine
if sys.argv[1] == "kept":
    machine.keep_freed_memory()
before = []
for _ in range(6):
    before.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    batch = [b"x" * (6 * 2**20) for _ in range(9)]
    del batch
print(before[-1] - before[1])
"""
KERNELS = """
import sys, streampca.cli.app
assert "numpy" not in sys.modules
import numpy
print(streampca.process.machine.describe_openblas_kernels())
"""


@pytest.mark.parametrize(
    ("vendor", "flags", "before", "after"),
    [
        ("AuthenticAMD", FLAGS, None, "SkylakeX"),
        ("AuthenticAMD", FLAGS, "Haswell", "Haswell"),
        ("AuthenticAMD", "flags : fpu avx2", None, None),
        ("GenuineIntel", FLAGS, None, None),
    ],
)
def test_amd_processors_with_avx512_get_kernels_for_avx512(
    vendor: str, flags: str, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(2 * f"processor : 0\nvendor_id : {vendor}\n{flags}\n\n")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(os, "environ", {} if before is None else {"OPENBLAS_CORETYPE": before})
    machine.choose_openblas_kernels()
    assert os.environ.get("OPENBLAS_CORETYPE") == after


@pytest.mark.slow
def test_kernels_are_chosen_before_numpy_is_imported() -> None:
    assert output_of(KERNELS, OPENBLAS_CORETYPE="Nehalem").startswith("Nehalem")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_process_uses_no_more_cores_than_the_limit_of_its_container(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.count_usable_cores(tmp_path) == cores


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is configured")
def test_freed_memory_is_reused() -> None:
    kept, returned = (int(output_of(BATCHES, mode)) for mode in ("kept", "returned"))
    assert kept < PAGES_PER_BATCH / 4
    assert returned > PAGES_PER_BATCH, "the C library keeps freed memory by default"

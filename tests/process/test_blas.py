"""OpenBLAS is asked for the kernels of the processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streampca.process import blas

FLAGS = "flags : fpu avx2 avx512f avx512dq avx512bw avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "before", "after"),
    [
        ("AuthenticAMD", FLAGS, None, "SkylakeX"),
        ("AuthenticAMD", FLAGS, "Haswell", "Haswell"),
        ("AuthenticAMD", "flags : fpu avx2", None, None),
        ("GenuineIntel", FLAGS, None, None),
    ],
)
def test_the_kernels_follow_the_processor(
    vendor: str, flags: str, before: str | None, after: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = f"processor : 0\nvendor_id : {vendor}\n{flags}\n\n"
    (tmp_path / "cpuinfo").write_text(2 * processor)
    monkeypatch.setattr(blas, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(os, "environ", {} if before is None else {"OPENBLAS_CORETYPE": before})
    blas.choose_kernels()
    assert os.environ.get("OPENBLAS_CORETYPE") == after


@pytest.mark.slow
def test_they_are_chosen_before_numpy_is_imported_and_are_named() -> None:
    script = (
        "import sys, streampca.cli.app, streampca.process.blas; assert 'numpy' not in sys.modules; import numpy;"
        "print(streampca.process.blas.kernels())"
    )
    environment = os.environ | {"OPENBLAS_CORETYPE": "Nehalem"}
    outcome = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    assert outcome.stdout.startswith("Nehalem")

"""The number of cores respects the CPU limit of the container."""

import os
from pathlib import Path

import pytest

from streampca.process.cores import usable_cores


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
def test_a_container_may_use_no_more_cores_than_its_limit(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores

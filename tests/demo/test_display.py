"""What the demo displays before there is a model."""

from pathlib import Path

import pytest

from streampca.demo.display import DemoStatus, phase_of

_COMPILING = '{"event":"compiling kernels"}\n'


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("", "starting …"),
        (_COMPILING, "compiling, once on this machine …"),
        (_COMPILING + '{"event":"kernels compiled"}\n', "starting …"),
    ],
)
def test_it_says_that_the_worker_compiles(tmp_path: Path, log: str, shown: str) -> None:
    (tmp_path / "worker.log").write_text(log, encoding="utf-8")
    status = DemoStatus(1.0, 2000, 0.0, None, None, phase_of(tmp_path / "worker.log"))
    assert status.figures() == {"sent": "2,000", "learned": shown}

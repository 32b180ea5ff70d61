"""The estimator, `fit`, `inspect` and `check`, documented for Windows, need nothing that only POSIX has."""

import subprocess
import sys
from pathlib import Path

import numpy as np

WITHOUT_POSIX = """
import os, sys
for name in ("resource", "fcntl", "pwd", "grp"):
    sys.modules[name] = None
for name in ("O_DIRECTORY", "fork", "geteuid"):
    delattr(os, name)
import streampca
from streampca.cli.app import main
streampca.ImplicitKrasulina
for command in sys.argv[1:]:
    sys.argv = ["streampca", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


def test_commands_for_files_need_no_posix(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 5)))
    commands = [
        "fit v.npy -o model.npz --components 2",
        "inspect model.npz --json",
        "check --topic t --dimensions 3 --components 2",
    ]
    program = [sys.executable, "-c", WITHOUT_POSIX, *commands]
    outcome = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert '"version": 300' in outcome.stdout
    assert "no mistakes" in outcome.stdout

"""What is documented for Windows: estimator, `fit`, `inspect` and `check` need nothing that only POSIX has."""

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
sys.argv = ["streampca", *sys.argv[1:]]
main()
"""


def run(*arguments: str | Path) -> str:
    command = [sys.executable, "-c", WITHOUT_POSIX, *map(str, arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_commands_for_files_need_no_posix(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((300, 5)))
    run("fit", tmp_path / "v.npy", "-o", tmp_path / "model.npz", "--components", "2")
    assert '"version": 300' in run("inspect", tmp_path / "model.npz", "--json")
    assert "no mistakes" in run("check", "--topic", "t", "--dimensions", "3", "--components", "2")

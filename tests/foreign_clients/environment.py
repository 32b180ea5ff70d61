"""An environment for clients that others have written: they pin much, and none of it is in ours."""

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
SCRIPTS = Path(__file__).with_name("scripts")


def interpreter() -> Path:
    """Python with what the lock names, installed once for each lock."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    folder = Path.home() / ".cache" / "streampca-clients" / digest
    python, uv = folder / "bin" / "python", [sys.executable, "-m", "uv", "--quiet"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the tests wait here
        if not (folder / "complete").exists():
            subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(folder)], check=True)
            subprocess.run([*uv, "pip", "sync", "--python", str(python), str(LOCK)], check=True)
            (folder / "complete").touch()
    return python


def run(command: Sequence[object], timeout_s: float = 240) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

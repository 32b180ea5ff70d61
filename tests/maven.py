"""Runs Maven, one process at a time: concurrent ones may corrupt their shared repository."""

import fcntl
import subprocess
from pathlib import Path

LOCK = Path.home() / ".cache" / "streampca-maven.lock"


def maven(*words: str, folder: Path) -> str | None:
    """Run a goal in a folder; return the end of its output if it failed."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        outcome = subprocess.run(
            ["mvn", "-q", "-B", *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
    return (outcome.stdout + outcome.stderr).strip()[-500:] if outcome.returncode else None

"""Processes that a benchmark starts from modules of this folder. Their stderr is ours, so that a failure is seen."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


def output_of(module: str, *words: str, timeout_s: float = 600) -> str:
    """Run `python -m benchmarks.<module>` to its end and return its stdout."""
    with start(module, *words) as child:
        try:
            out = child.communicate(timeout=timeout_s)[0]
        finally:
            child.kill()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    return out


def start(module: str, *words: str) -> "subprocess.Popen[str]":
    """Start `python -m benchmarks.<module>`, whose stdout the caller reads."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: S603 - our own module


def cpu_seconds(pid: int) -> float:
    """Processor time that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

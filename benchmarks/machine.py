"""What a benchmark ran on."""

import os
import platform
from pathlib import Path

import numpy as np


def machine() -> str:
    """One sentence."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        pairs = (line.partition(":") for line in info.read_text().splitlines())
        model = next((value.strip() for key, _, value in pairs if key.startswith("model name")), model)
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"Machine: {model}, {os.cpu_count()} cores; one BLAS thread; {versions}."

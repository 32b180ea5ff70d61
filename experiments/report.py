"""What experiments and benchmarks write into the pages of docs/: blocks between markers, and what they ran on.

<!-- speed -->
…
<!-- /speed -->
"""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampca.process.blas import kernels

DOCS = Path(__file__).parents[1] / "docs"


def machine() -> str:
    """The machine in one sentence."""
    model, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    model = next((value.strip() for key, _, value in pairs if key.startswith("model name")), model)
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, OpenBLAS kernels {kernels()}"
    return f"Machine: {model}, {os.cpu_count()} cores; one BLAS thread; {versions}."


def block(text: str, name: str) -> str:
    """The text between the markers of one block of a page."""
    found = _between(name).findall(text)
    if len(found) != 1:
        raise ValueError(f"the page has {len(found)} blocks <!-- {name} -->, and must have one")
    return str(found[0]).strip()


def replaced(text: str, name: str, new: str) -> str:
    """The page with another text in one block."""
    block(text, name)
    return _between(name).sub(lambda _: f"<!-- {name} -->\n{new}\n<!-- /{name} -->", text)


def write_block(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace one block of a page."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), name, "\n".join(lines)), encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", re.DOTALL)

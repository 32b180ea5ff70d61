"""What experiments and benchmarks write into the pages of docs/: tables in blocks between markers, and their machine.

<!-- speed -->
…
<!-- /speed -->
"""

import os
import platform
import re
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from streampca.process.machine import describe_openblas_kernels

DOCS = Path(__file__).parents[1] / "docs"
RUNS = 10  # of each kind
Claim = tuple[str, Sequence[tuple[str, int]], Sequence[bool]]  # a sentence, settings (data, k), and where it holds


def machine() -> str:
    """The machine in one sentence."""
    model, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    model = next((value.strip() for key, _, value in pairs if key.startswith("model name")), model)
    versions = (
        f"Python {platform.python_version()}, NumPy {np.__version__}, OpenBLAS kernels {describe_openblas_kernels()}"
    )
    return f"Measured on {model} with {os.cpu_count()} cores, one BLAS thread, {versions}."


def block(text: str, name: str) -> str:
    """The text between the markers of one block of a page."""
    blocks = _between(name).findall(text)
    if len(blocks) != 1:
        raise ValueError(f"the page has {len(blocks)} blocks <!-- {name} -->, and must have one")
    return str(blocks[0]).strip()


def replaced(text: str, name: str, new: str) -> str:
    """The page with another text in one block."""
    block(text, name)
    return _between(name).sub(lambda _: f"<!-- {name} -->\n{new}\n<!-- /{name} -->", text)


def write_block(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replace one block of a page."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), name, "\n".join(lines)), encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], labels: int | None = None) -> list[str]:
    """The lines of a Markdown table; with `labels` columns in front, without rows and columns of dashes after these."""
    if labels is not None:
        rows = [row for row in rows if set(row[labels:]) != {"–"}]
        shown = [i for i in range(len(head)) if i < labels or any(row[i] != "–" for row in rows)]
        head, *rows = ([row[i] for i in shown] for row in (head, *rows))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean±standard deviation, with the number of runs if they are not ten; a dash for nothing."""
    if not values:
        return "–"
    deviation = f"±{stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}" + ("" if len(values) == RUNS else f" [{len(values)}]")


def cell(value: float, form: str) -> str:
    """A number in this format; a dash for one that is missing."""
    return "–" if isnan(value) else format(value, form)


def average(values: Sequence[float]) -> float:
    """The mean; not a number for nothing."""
    return fmean(values) if values else float("nan")


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", re.DOTALL)

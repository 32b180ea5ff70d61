"""Pictures as small SVG files that come out the same each time."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STYLES: dict[str, dict[str, Any]] = {
    "oja": {"color": "tab:blue", "linewidth": 3.5, "alpha": 0.4},  # wide and pale: Krasulina's line hides it
    "krasulina": {"color": "tab:orange"},
    "incremental": {"color": "tab:green"},
    "implicit": {"color": "tab:red"},
    "default": {"color": "black"},
    "sklearn": {"color": "tab:purple"},
}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "streampca", "font.size": 8, "lines.linewidth": 1.1}


@contextmanager
def picture(path: Path, rows: int, columns: int) -> Iterator[Any]:
    """Axes (rows, columns) to draw on; one legend below all of them; saved at the end."""
    from matplotlib import rc_context  # here, because it takes as long to import as all the rest together
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(3.2 * columns, 2.6 * rows))
        axes = figure.subplots(rows, columns, squeeze=False)
        yield axes
        handles: dict[str, Any] = {}
        for panel in axes.flat:
            panel.grid(visible=True, alpha=0.3)
            handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        wide = columns if columns < 3 else 4
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=wide, frameon=False)
        below = 0.1 + 0.18 * -(-len(handles) // wide)  # inches
        figure.tight_layout(rect=(0, below / (2.6 * rows), 1, 1))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        path.write_text(_compact(text.getvalue()), encoding="utf-8")


def _compact(svg: str) -> str:
    """With coordinates to a tenth of a point, without what changes nothing: white space, and ticks' styles again."""
    svg = re.sub(r"\d+\.\d{4,}", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r'(<use [^>]*) style="stroke: #000000; stroke-width: [\d.]+"', r"\1", svg)
    return re.sub(r"\n +", "\n", re.sub(r" \nL ", "L", svg))


def spread(panel: Any, x: Sequence[float], curves: Sequence[Sequence[float]], line: str = "-", **look: Any) -> None:
    """The mean of several runs as a line, and a band from the least to the greatest of them at each point."""
    if len(curves) > 1:
        lows, highs = ([choose(values) for values in zip(*curves, strict=True)] for choose in (min, max))
        panel.fill_between(x, lows, highs, color=look["color"], alpha=0.15, linewidth=0)
    panel.plot(x, mean_curve(curves), line, **look)


def explain(panel: Any, meaning: dict[str, str]) -> None:
    """Entries of the legend for kinds of line, and for the band."""
    for line, words in meaning.items():
        panel.plot([], [], line, color="gray", label=words)
    panel.fill_between([], [], [], color="gray", alpha=0.3, linewidth=0, label="band: least to greatest of the runs")


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Point by point."""
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def points(length: int, every: int, messages: int) -> list[int]:
    """After how many messages the points of a curve were taken: the last one at the end of the stream."""
    return [min(every * (i + 1), messages) for i in range(length)]

"""Pictures as small SVG files that come out the same each time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

COLOURS = {
    "oja": "tab:blue",
    "krasulina": "tab:orange",
    "incremental": "tab:green",
    "implicit": "tab:red",
    "default": "black",
    "sklearn": "tab:purple",
}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "streampca", "font.size": 8, "lines.linewidth": 1.1}


@contextmanager
def picture(path: Path, rows: int, columns: int) -> Iterator[Any]:
    """Axes (rows, columns) to draw on; one legend below all of them; saved at the end."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False)
        yield axes
        handles: dict[str, Any] = {}
        for panel in axes.flat:
            panel.grid(visible=True, alpha=0.3)
            handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        wide = columns if columns < 3 else 4
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=wide, frameon=False)
        below = 0.1 + 0.18 * -(-len(handles) // wide)  # inches
        figure.tight_layout(rect=(0, below / (2.6 * rows), 1, 1))
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Point by point."""
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def points(length: int, every: int, messages: int) -> list[int]:
    """After how many messages the points of a curve were taken: the last one at the end of the stream."""
    return [min(every * (i + 1), messages) for i in range(length)]


def embedded(name: str, alternative: str) -> str:
    """The picture as the page shows it."""
    return f"![{alternative}](../experiments/results/{name})"

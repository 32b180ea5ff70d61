"""The demo's display: a live table on a terminal, otherwise a line every few seconds."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streampca.stream.model_file import PublishedModel
from streampca.vectors.synthetic import Truth

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY_S = 2.0
_WIDTH = 48


@dataclass(frozen=True)
class DemoStatus:
    """The demo's figures, `elapsed` seconds after the start."""

    elapsed: float
    sent: int
    rate: float  # messages learned per second, over the last seconds
    model: PublishedModel | None
    truth: Truth | None
    phase: str = "starting …"  # until there is a model

    def figures(self) -> dict[str, str]:
        """The figures to display, by name."""
        if self.model is None:
            return {"sent": f"{self.sent:,}", "learned": self.phase}
        published, components = self.model, self.model.model.components
        figures = {
            "sent": f"{self.sent:,}",
            "learned": f"{published.version:,} ({self.rate:,.0f} per second)",
            "loss ratio": _loss(published.loss_ewma, self.truth),
            "explained variance": f"{published.model.explained_variance_ratio.sum():.2%}",
        }
        if self.truth is not None:
            figures["subspace found"] = (
                f"{self.truth.found(components):.3%} (largest angle {self.truth.largest_angle(components):.2f}°)"
            )
        return figures


def _loss(loss: float | None, truth: Truth | None) -> str:
    if loss is None:
        return "–"
    return f"{loss:.4f}" + (f" (optimum: {truth.loss_ratio:.4f})" if truth else "")


def phase_of(log: Path) -> str:
    """What a worker does before its first model, by its log file."""
    text = log.read_text(encoding="utf-8")
    if "compiling kernels" in text and "kernels compiled" not in text:
        return "compiling, once on this machine …"
    return "starting …"


class Display:
    """Displays the demo's status; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console, self._live = console, Live(console=console, refresh_per_second=4, transient=False)
        self._losses: deque[float] = deque(maxlen=_WIDTH)
        self._version = -1
        self._next_line = 0.0
        self._time = Progress(TextColumn("[bold]{task.description}"), BarColumn(_WIDTH), TimeElapsedColumn())
        self._task = self._time.add_task("demo", total=None)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print a permanent line above the live table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def ends_at(self, elapsed: float) -> None:
        """Set the time at which the demo will end."""
        self._time.update(self._task, total=elapsed)

    def show(self, status: DemoStatus) -> None:
        """Display the latest status."""
        if status.model is not None and status.model.version != self._version:
            self._version = status.model.version
            if status.model.loss_ewma is not None:
                self._losses.append(status.model.loss_ewma)
        if self._console.is_terminal:
            self._time.update(self._task, completed=status.elapsed)
            self._live.update(self._table(status))
        elif status.elapsed >= self._next_line:
            self._next_line = status.elapsed + _PLAIN_EVERY_S
            figures = "  ".join(f"{name}: {value}" for name, value in status.figures().items())
            self.note(f"{status.elapsed:5.1f} s  {figures}")

    def _table(self, status: DemoStatus) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, value in status.figures().items():
            table.add_row(f"[dim]{name}[/]", value)
        if len(self._losses) > 1:
            table.add_row("[dim]loss by version[/]", f"[cyan]{sparkline(list(self._losses))}[/]")
        return Group(table, self._time)


def sparkline(values: list[float]) -> str:
    """The values as a line of bars, scaled from the minimum to the maximum."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)

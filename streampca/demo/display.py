"""The demo's display: a live table on a terminal, otherwise a line every few seconds."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from streampca.stream.model_file import PublishedModel
from streampca.vectors.synthetic import Truth

_PLAIN_EVERY_S = 2.0


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
        self._console, self._live = console, Live(console=console, refresh_per_second=4)
        self._next_line = 0.0

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

    def show(self, status: DemoStatus) -> None:
        """Display the latest status."""
        if self._console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for name, value in {"time": f"{status.elapsed:.0f} s", **status.figures()}.items():
                table.add_row(f"[dim]{name}[/]", value)
            self._live.update(table)
        elif status.elapsed >= self._next_line:
            self._next_line = status.elapsed + _PLAIN_EVERY_S
            figures = "  ".join(f"{name}: {value}" for name, value in status.figures().items())
            self.note(f"{status.elapsed:5.1f} s  {figures}")

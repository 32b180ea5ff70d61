"""`streampca check`: prints the effective settings, their origins and every mistake, without any connection."""

from pathlib import Path
from typing import Any

from rich.table import Table

from streampca.commands.printing import console
from streampca.settings import ServeSettings, WorkerSettings
from streampca.settings.base import Effective


def run(config: Path | None, **options: Any) -> int:
    """Print the settings of worker and sidecar; return the exit code."""
    worker, worker_mistakes = WorkerSettings.explain(config, **options)
    shared = {name: options[name] for name in ServeSettings.model_fields.keys() & options.keys()}
    serve, serve_mistakes = ServeSettings.explain(config, **shared)
    known = {effective.name for effective in worker}
    out = console()
    out.print(_table("streampca worker", worker))
    out.print(_table("streampca serve (besides those above)", [e for e in serve if e.name not in known]))
    mistakes = list(dict.fromkeys(worker_mistakes + serve_mistakes))
    for mistake in mistakes:
        out.print(f"✗ {mistake}", style="red")
    if not mistakes:
        out.print("✓ no mistakes found", style="green")
    return 2 if mistakes else 0


def _table(title: str, settings: list[Effective]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for effective in settings:
        quiet = "dim" if effective.origin == "default" else ""
        table.add_row(effective.name, effective.value or "–", effective.origin, style=quiet)
    return table

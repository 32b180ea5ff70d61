"""`streampca check`: prints the effective settings, their origins and every mistake, without any connection."""

from pathlib import Path
from typing import Any

from rich.table import Table

from streampca.cli.console import console
from streampca.settings import store_url
from streampca.settings.base import Effective
from streampca.settings.commands import ServeSettings
from streampca.settings.listening import is_loopback
from streampca.settings.transform import TransformSettings
from streampca.settings.worker import WorkerSettings


def run(config: Path | None, **options: Any) -> int:
    """Print the settings of worker and sidecar, and of transform if any is given; return the exit code."""
    out = console()
    shown: list[Effective] = []
    mistakes: dict[str, None] = {}  # in order, each once
    for name, kind in (("worker", WorkerSettings), ("serve", ServeSettings), ("transform", TransformSettings)):
        settings, found = kind.explain(config, **options)
        own = [effective for effective in settings if effective not in shown]
        if kind is TransformSettings and all(effective.origin in ("default", "missing") for effective in own):
            continue
        out.print(_table(f"streampca {name}{' (besides those above)' if shown else ''}", own))
        shown += own
        mistakes |= dict.fromkeys(found)
    for name, kind in (("worker", WorkerSettings), ("serve", ServeSettings)):
        given = {effective.name: effective.value for effective in kind.explain(config, **options)[0]}
        if not given["tokens_file"] and not is_loopback(given["host"]):
            warning = f"! streampca {name}: whoever reaches {given['host']} can read what it shows: set tokens_file"
            out.print(warning, style="yellow")
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
        value = store_url.absolute(effective.value) if effective.name == "store" else effective.value
        table.add_row(effective.name, value or "–", effective.origin, style=quiet)
    return table

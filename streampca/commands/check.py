"""`streampca check`: prints the effective settings, their origins and every mistake, without any connection."""

import os
from pathlib import Path
from typing import Any

from rich.table import Table

from streampca import store_url
from streampca.commands.console import console
from streampca.settings import ServeSettings, TransformSettings, WorkerSettings
from streampca.settings.base import MASK, Effective, masked

# Ends of names whose values are no secrets: addresses, names, and paths of files.
_HARMLESS = (
    "_REGION", "_ENDPOINT", "_URL", "_URL_S3", "_URI", "_ALLOW_HTTP", "_STYLE_REQUEST", "_ROLE_ARN", "_FILE",
    "_ACCOUNT_NAME", "_APPLICATION_CREDENTIALS",
)  # fmt: skip


def run(config: Path | None, **options: Any) -> int:
    """Print the settings of worker and sidecar, and of transform if any is given; return the exit code."""
    out = console()
    shown: list[Effective] = []
    mistakes: dict[str, None] = {}  # in order, each once
    for name, kind in (("worker", WorkerSettings), ("serve", ServeSettings), ("transform", TransformSettings)):
        settings, found = kind.explain(config, **{name: options[name] for name in options if name in kind.model_fields})
        own = [effective for effective in settings if effective not in shown]
        if kind is TransformSettings and all(effective.origin in ("default", "missing") for effective in own):
            continue
        out.print(_table(f"streampca {name}{' (besides those above)' if shown else ''}", own))
        shown += own
        mistakes |= dict.fromkeys(found)
    if bucket := _bucket_variables(shown):
        out.print(_table("environment of the object store", bucket))
    for mistake in mistakes:
        out.print(f"✗ {mistake}", style="red")
    if not mistakes:
        out.print("✓ no mistakes found", style="green")
    return 2 if mistakes else 0


def _bucket_variables(settings: list[Effective]) -> list[Effective]:
    """The variables that the store's provider reads, if the store is at a URL; secrets masked."""
    store = next(effective.value for effective in settings if effective.name == "store")
    prefix = store_url.VARIABLES.get(store_url.scheme_of(store) or "", "\0")
    found = sorted((name, value) for name, value in os.environ.items() if name.startswith(prefix))
    return [
        Effective(name, masked(value) if name.endswith(_HARMLESS) else MASK, "environment") for name, value in found
    ]


def _table(title: str, settings: list[Effective]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for effective in settings:
        quiet = "dim" if effective.origin == "default" else ""
        value = store_url.absolute(effective.value) if effective.name == "store" else effective.value
        table.add_row(effective.name, value or "–", effective.origin, style=quiet)
    return table

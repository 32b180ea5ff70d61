"""`streampca check`: prints the effective settings, their origins and every mistake, without any connection."""

from pathlib import Path

from rich.table import Table

from streampca.cli.console import console
from streampca.cli.options import Options
from streampca.settings import store_url
from streampca.settings.base import Effective, Settings
from streampca.settings.commands import ServeSettings, TransformSettings, WorkerSettings
from streampca.settings.process import is_loopback

_KINDS: dict[str, type[Settings]] = {"worker": WorkerSettings, "serve": ServeSettings, "transform": TransformSettings}


def run(options: Options) -> int:
    """Print the settings of worker and sidecar, and of transform if one of its own is set; return the exit code."""
    out = console()
    shown: list[Effective] = []
    mistakes: dict[str, None] = {}  # in order, without repetitions
    warnings: list[str] = []
    for name, kind in _KINDS.items():
        settings, mistakes_of_kind = kind.explain(**options)
        own = [effective for effective in settings if effective not in shown]
        if kind is TransformSettings and all(effective.origin in ("default", "missing") for effective in own):
            continue
        title = f"streampca {name}{' (besides those above)' if shown else ''}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for heading in ("setting", "value", "from"):
            table.add_column(heading, overflow="fold")
        for setting, value, origin in own:
            if setting == "store" and store_url.scheme_of(value) is None:
                value = str(Path(value).absolute())
            table.add_row(setting, value or "–", origin, style="dim" if origin == "default" else "")
        out.print(table)
        shown += own
        mistakes |= dict.fromkeys(mistakes_of_kind)
        values = {effective.name: effective.value for effective in settings}
        if not values["tokens_file"] and not is_loopback(values["host"]):
            warnings.append(f"! streampca {name}: whoever reaches {values['host']} can read what it shows")
    for warning in warnings:
        out.print(f"{warning}: set tokens_file", style="yellow")
    for mistake in mistakes:
        out.print(f"✗ {mistake}", style="red")
    if not mistakes:
        out.print("✓ no mistakes found", style="green")
    return 2 if mistakes else 0

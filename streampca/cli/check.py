"""`streampca check`: prints the settings in effect, their origins and every mistake, without a connection."""

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
    """Print the settings of worker, sidecar and transform and their mistakes; return the exit code.

    Transform is left out unless a setting that only transform has is given.
    """
    out = console()
    printed: list[Effective] = []
    mistakes: dict[str, None] = {}  # a dictionary keeps the order and drops repetitions
    warnings: list[str] = []
    for name, kind in _KINDS.items():
        settings, mistakes_of_kind = kind.explain(**options)
        own = [effective for effective in settings if effective not in printed]
        if kind is TransformSettings and all(effective.origin in ("default", "missing") for effective in own):
            continue
        title = f"streampca {name}{' (besides those above)' if printed else ''}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for heading in ("setting", "value", "from"):
            table.add_column(heading, overflow="fold")
        for setting, value, origin in own:
            if setting == "store" and store_url.scheme_of(value) is None:
                value = str(Path(value).absolute())
            table.add_row(setting, value or "–", origin, style="dim" if origin == "default" else "")
        out.print(table)
        printed += own
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

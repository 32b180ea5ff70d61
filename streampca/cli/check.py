"""`streampca check`: prints the settings in effect, their origins and every mistake, without a connection."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from streampca.cli.console import console
from streampca.cli.options import Options
from streampca.settings import store_url
from streampca.settings.base import EffectiveSetting, Settings
from streampca.settings.commands import ServeSettings, TransformSettings, WorkerSettings, collect_fields
from streampca.settings.given_values import list_foreign_variables
from streampca.settings.process import is_loopback

_SETTINGS_BY_COMMAND: dict[str, type[Settings]] = {
    "worker": WorkerSettings,
    "serve": ServeSettings,
    "transform": TransformSettings,
}


def run(options: Options) -> int:
    """Print the settings of worker, sidecar and transform, and their mistakes; return the exit code.

    Transform is printed only if one of its own settings is given.
    """
    out = console()
    printed: list[EffectiveSetting] = []
    mistakes: list[str] = []
    warnings: list[str] = []
    for command, settings_class in _SETTINGS_BY_COMMAND.items():
        settings, mistakes_of_command = settings_class.explain(**options)
        new_settings = [setting for setting in settings if setting not in printed]
        is_any_given = any(setting.is_given for setting in new_settings)
        if settings_class is TransformSettings and not is_any_given:
            continue
        title = f"streampca {command}{' (besides those above)' if printed else ''}"
        out.print(_create_table(title, new_settings))
        printed += new_settings
        mistakes += [mistake for mistake in mistakes_of_command if mistake not in mistakes]
        warnings += _warn_of_open_port(command, settings)
    # `explain` has reported the unknown environment variables that look like misspelt settings. Add all other unknown
    # variables.
    foreign_variables = list_foreign_variables(collect_fields(Settings))
    mistakes += [f"{variable} is not a setting" for variable in foreign_variables]
    _print_result(warnings, mistakes)
    return 2 if mistakes else 0


def _warn_of_open_port(command: str, settings: Sequence[EffectiveSetting]) -> list[str]:
    """Return a warning if other machines can read the HTTP port of a command without a token; otherwise nothing."""
    value_by_name = {setting.name: setting.value for setting in settings}
    host = value_by_name["host"]
    if value_by_name["tokens_file"] or is_loopback(host):
        return []
    return [f"streampca {command}: whoever reaches {host} can read what it shows: set tokens_file"]


def _print_result(warnings: Sequence[str], mistakes: Sequence[str]) -> None:
    """Print the warnings, and the mistakes or that there are none."""
    out = console()
    for warning in warnings:
        out.print(f"! {warning}", style="yellow")
    for mistake in mistakes:
        out.print(f"✗ {mistake}", style="red")
    if not mistakes:
        out.print("✓ no mistakes found", style="green")


def _create_table(title: str, settings: Sequence[EffectiveSetting]) -> Table:
    """Return a table of settings, their values and their origins."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, value, origin in settings:
        if name == "store" and store_url.find_scheme(value) is None:  # a folder, not a URL
            value = str(Path(value).absolute())
        table.add_row(name, value or "–", origin, style="dim" if origin == "default" else "")
    return table

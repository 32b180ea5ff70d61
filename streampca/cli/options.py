"""Settings as command-line options: None when not given. Their help is looked up only to be shown: that takes time."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Given = dict[str, Any]
"""The values of these options by name."""

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; default: the one named by STREAMPCA_CONFIG.")]


class _SettingsCommand(TyperCommand):
    """Takes the help of options that are settings from the settings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from streampca.settings.base import Settings, all_fields

        fields = all_fields(Settings)
        for option in self.params:
            if option.name in fields and not getattr(option, "help", None):
                option.help = fields[option.name].description  # type: ignore[attr-defined]
        super().format_options(ctx, formatter)


def command(
    app: typer.Typer, *settings: str, name: str | None = None, logs_errors: bool = False
) -> Callable[[Callable[..., None]], None]:
    """Add a command with these settings and `config` as options, which become its first argument.

    That is an object of the class of settings that its annotation names, or a `Given`. With `logs_errors` the error
    that ends the command is the last line of its log, instead of a line on stderr.
    """
    option: Any = Annotated[str | None, typer.Option(metavar="VALUE")]
    kinds = {**dict.fromkeys(settings, option), "config": Config}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]

    def decorate(function: Callable[..., None]) -> None:
        first, *own = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in kinds}
            if first.annotation is Given:
                function(given, **arguments)
                return
            from streampca.cli.run_logged import run_logged
            from streampca.settings import commands as classes

            with run_logged(getattr(classes, first.annotation), given, logs_errors=logs_errors) as read:
                function(read, **arguments)

        by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__annotations__ = {}  # else typer would import the settings
        run.__signature__ = inspect.Signature([*options, *by_keyword])  # type: ignore[attr-defined]  # typer reads it
        app.command(name, cls=_SettingsCommand)(run)

    return decorate

"""Settings as command-line options; an option that is not given is None.

Their help is looked up only when it is printed, because the import of the settings takes time.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from streampca.errors import SettingsError, naming_the_worker

if TYPE_CHECKING:
    from streampca.files.columns import FileOptions

Options = dict[str, Any]
"""The values of a command's settings by name."""

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; default: the one named by STREAMPCA_CONFIG.")]

Field = Annotated[
    str, typer.Option(help="Where the numbers are: paths with dots, such as payload.embedding, or temp,hum, or 'f_*'.")
]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help="Whether the first line of CSV is a header.")]
Separator = Annotated[str | None, typer.Option(help="Between the cells of CSV; default: comma, semicolon or tab.")]


_METAVARS = {bool: "true|false", int: "NUMBER", float: "NUMBER", Path: "PATH"}


class _SettingsCommand(TyperCommand):
    """A command that prints the descriptions of settings as the help of their options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from pydantic_core import PydanticUndefined

        from streampca.settings.commands import Settings, all_fields

        fields = all_fields(Settings)
        for option in self.params:
            if option.name in fields and not getattr(option, "help", None):
                field = fields[option.name]
                default = "" if field.default in (None, PydanticUndefined) else f" [default: {field.default}]"
                option.help = f"{field.description}{default}"  # type: ignore[attr-defined]
                option.metavar = _describe_value(field.annotation)
        super().format_options(ctx, formatter)


def _describe_value(kind: Any) -> str:
    """Describe the values of a setting for its help: words to choose from, a number, a path, or any value."""
    kinds = [kind, *get_args(kind)]
    words = [word for each in kinds if get_origin(each) is Literal for word in get_args(each)]
    if words:
        return "|".join(words)
    return next((name for type_, name in _METAVARS.items() if type_ in kinds), "VALUE")


def parse_time_ms(text: str | None, name: str) -> int | None:
    """Parse the time of the option `name`, ISO 8601, to milliseconds since 1970. Raises `SettingsError`."""
    from streampca.settings.commands import milliseconds_of

    if text is None:
        return None
    try:
        return milliseconds_of(text)
    except ValueError:
        raise SettingsError(f"--{name}: {text!r} is no time such as 2026-01-31T12:00+02:00") from None


def file_options(
    field: str, header: bool | None, separator: str | None, dimensions: int | None = None
) -> "FileOptions":
    """Collect the options about files. Raises `SettingsError`."""
    from streampca.files.columns import FileOptions

    if separator:
        separator = separator.replace("\\t", "\t")  # a tab that was typed as two characters
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise SettingsError(f"--separator {separator!r}: must be one character")
    return FileOptions(field, header, separator, dimensions)


@contextmanager
def read_settings(kind: str, options: Options, *, logs_errors: bool = False) -> Iterator[Any]:
    """Configure the log, read the settings of the class named `kind`, and yield them. Raises `SettingsError`.

    With `logs_errors`, an error that ends the block is the last line of the log. The settings of the log are read
    first, so that mistakes in other settings are already logged in its format.
    """
    from streampca.process import logs, start
    from streampca.settings import commands

    try:
        level = commands.LogSettings.read(options.get("config")).log_level
    except SettingsError:  # reported when all settings are read
        level = "info"
    logs.configure(level)
    with start.errors_logged() if logs_errors else nullcontext(), naming_the_worker():
        yield getattr(commands, kind).read(**options)


def command(
    app: typer.Typer, *settings: str, name: str | None = None, logs_errors: bool = False
) -> Callable[[Callable[..., None]], None]:
    """Add a command to `app`, with these settings and `config` as options.

    The decorated function gets the options as its first argument: as an object of the class of settings that the
    annotation names, or as `Options`. With `logs_errors`, an error that ends the command is the last line of its log
    instead of a line on stderr.
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
            values = {name: arguments.pop(name) for name in kinds}
            if first.annotation is Options:
                function(values, **arguments)
                return
            with read_settings(first.annotation, values, logs_errors=logs_errors) as read:
                function(read, **arguments)

        by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__annotations__ = {}  # otherwise typer would import the settings, which takes time
        run.__signature__ = inspect.Signature([*options, *by_keyword])  # type: ignore[attr-defined]  # typer reads it
        app.command(name, cls=_SettingsCommand)(run)

    return decorate

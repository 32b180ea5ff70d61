"""Settings as command-line options; an option that is not given is None.

Their help is looked up only when it is printed, because the import of the settings takes time.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from streampca.errors import SettingsError, explain_missing_worker_extra
from streampca.settings.options import FLAGS

if TYPE_CHECKING:
    from streampca.files.columns import FileOptions

Options = dict[str, Any]
"""The values of a command's settings by name."""

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; default: the one named by STREAMPCA_CONFIG.")]

Field = Annotated[
    str, typer.Option(help="Where the numbers are: paths with dots, such as payload.embedding, or temp,hum, or 'f_*'.")
]
Where = Annotated[str, typer.Option(help="Which rows count: conditions such as type=cpu,__deleted!=true.")]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help="Whether the first line of CSV is a header.")]
Separator = Annotated[str | None, typer.Option(help="Between the cells of CSV; default: comma, semicolon or tab.")]
SkipLines = Annotated[int, typer.Option(min=0, help="Lines of CSV before the header, or the rows without one.")]
Encoding = Annotated[str | None, typer.Option(help="Of CSV, such as latin-1; default: by its mark, else UTF-8.")]

_PLACEHOLDERS = {bool: "true|false", int: "NUMBER", float: "NUMBER", Path: "PATH"}


class _SettingsCommand(TyperCommand):
    """A command that prints the descriptions of settings as the help of their options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. If an unknown option is a setting, the error says which environment variable sets it."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Only the error for an unknown option has `possibilities`.
            if hasattr(error, "possibilities"):
                error.message += _describe_variable(error.option_name)  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Print the options. Those that are settings get their help here, since typer knows only their names."""
        from pydantic_core import PydanticUndefined

        from streampca.settings.commands import Settings, collect_fields

        fields = collect_fields(Settings)
        for option in self.params:
            if option.name in fields and not getattr(option, "help", None):
                field = fields[option.name]
                has_default = field.default not in (None, "", PydanticUndefined)
                default = f" [default: {field.default}]" if has_default else ""
                option.help = f"{field.description}{default}"  # type: ignore[attr-defined]
                option.metavar = _describe_values(field.annotation)
        super().format_options(ctx, formatter)


def _describe_variable(option: str) -> str:
    """If an unknown option is spelled like a setting, return how to set it, for the end of an error; otherwise ""."""
    from streampca.settings.commands import Settings, collect_fields
    from streampca.settings.given_values import PREFIX

    name = option.removeprefix("--").replace("-", "_")
    if name not in collect_fields(Settings):
        return ""
    return f"; it is a setting: set {PREFIX}{name.upper()}, or {name} in the file of --config"


def _describe_values(annotation: Any) -> str:
    """Return which values a setting takes, for its help: the words to choose from, or a placeholder such as NUMBER."""
    types = [annotation, *get_args(annotation)]  # int and None for `int | None`
    words = [word for type_ in types if get_origin(type_) is Literal for word in get_args(type_)]
    if words:
        return "|".join(words)
    placeholders = [placeholder for type_, placeholder in _PLACEHOLDERS.items() if type_ in types]
    return placeholders[0] if placeholders else "VALUE"


def parse_time_ms(text: str | None, name: str) -> int | None:
    """Parse the value of the option --`name`, a time in ISO 8601 with its zone, to milliseconds since 1970.

    If the option is not given, return None. Raises `SettingsError`.
    """
    from streampca.settings.commands import parse_iso_time_ms

    if text is None:
        return None
    try:
        return parse_iso_time_ms(text)
    except ValueError as error:
        raise SettingsError(f"--{name}: {error}") from None


def collect_file_options(
    field: str,
    header: bool | None,
    separator: str | None,
    skip_lines: int,
    encoding: str | None,
    where: str = "",
) -> "FileOptions":
    """Check the options on how a file is read, and collect them in an object. Raises `SettingsError`."""
    from streampca.files.columns import FileOptions
    from streampca.settings.field_paths import parse_conditions

    if separator:
        separator = separator.replace("\\t", "\t")  # typed as two characters
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise SettingsError(f"--separator {separator!r}: must be one character")
    if encoding is not None:
        try:
            "".encode(encoding)
        except LookupError:
            raise SettingsError(
                f"--encoding {encoding}: Python does not know this encoding; write latin-1, for example"
            ) from None
    try:
        conditions = parse_conditions(where)
    except ValueError as error:
        raise SettingsError(f"--where: {error}") from None
    return FileOptions(field, header, separator, skip_lines=skip_lines, encoding=encoding, where=conditions)


def configure_log(options: Options) -> None:
    """Configure the log before the other settings are read."""
    from streampca.process import logs
    from streampca.settings.commands import LogSettings

    try:
        level = LogSettings.read(options.get("config")).log_level
    except SettingsError:  # reported when all settings are read
        level = "info"
    logs.configure(level)


@contextmanager
def read_settings(class_name: str, options: Options, *, logs_errors: bool = False) -> Iterator[Any]:
    """Configure the log, read the settings of the class named `class_name`, and yield them. Raises `SettingsError`.

    With `logs_errors`, unknown environment variables are logged, and an error in the block is logged and ends the
    process with an exit code.
    """
    # Imported only when a command runs, since these modules are slow to import, and `--help` does not need them.
    from streampca.process import start
    from streampca.settings import commands

    configure_log(options)
    if logs_errors:
        _log_unknown_variables()
    on_error = start.exit_on_error() if logs_errors else nullcontext()
    with on_error, explain_missing_worker_extra():
        yield getattr(commands, class_name).read(**options)


def _log_unknown_variables() -> None:
    """Log each variable STREAMPCA_… that neither is a setting nor resembles one.

    A variable that resembles a setting is probably misspelt, and ends the start with an error.
    """
    import structlog

    from streampca.settings.commands import Settings, collect_fields
    from streampca.settings.given_values import list_foreign_variables

    for variable in list_foreign_variables(collect_fields(Settings)):
        structlog.get_logger().warning("unknown variable ignored", variable=variable, cause="it is not a setting")


def command(
    app: typer.Typer, *, setting_names: Sequence[str], name: str | None = None, logs_errors: bool = False
) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that adds a function to `app` as a command, with these settings as options.

    The annotation of the function's first parameter decides what it gets:

    - `Options`: a dict with the text of each option. The function reads the settings itself.
    - The name of a settings class as a text, such as "WorkerSettings": an object of this class, read from the options.

    The function's other parameters are further options of the command. With `logs_errors`, errors are logged instead
    of printed.
    """
    option_names = (*setting_names, "config")

    def add_command(function: Callable[..., None]) -> None:
        """Add `function` as a command."""
        first_parameter, *own_parameters = inspect.signature(function).parameters.values()
        annotation = first_parameter.annotation  # `Options` itself, or the name of a settings class as a text
        wants_raw_options = annotation is Options

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            """Split the options, which typer passes as `arguments`, into settings and the function's own."""
            options = {option: arguments.pop(option) for option in option_names}
            if wants_raw_options:
                function(options, **arguments)
                return
            # `read_settings` imports the class, which is slow, only now.
            settings_class_name = annotation
            with read_settings(settings_class_name, options, logs_errors=logs_errors) as settings:
                function(settings, **arguments)

        run.__signature__ = _create_signature(option_names, own_parameters)  # type: ignore[attr-defined]
        # Typer would evaluate annotations, and so import the settings, which is slow.
        run.__annotations__ = {}
        app.command(name, cls=_SettingsCommand)(run)

    return add_command


def _create_signature(option_names: Iterable[str], own_parameters: Iterable[inspect.Parameter]) -> inspect.Signature:
    """Return a signature from which typer makes the options of a command: its settings, then its own parameters."""
    parameters = []
    for name in option_names:
        annotation: Any = Annotated[str | None, typer.Option(metavar="VALUE")]
        if name == "config":
            annotation = Config
        elif name in FLAGS:  # --name and --no-name
            annotation = Annotated[bool | None, typer.Option()]
        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        parameters.append(option)
    for parameter in own_parameters:
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return inspect.Signature(parameters)

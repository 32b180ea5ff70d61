"""How commands log; an error that ends one that runs for long is the last line of its log."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import structlog

from streampca import logs
from streampca.errors import SettingsError, StreampcaError, exit_code_of
from streampca.settings import LogSettings

log = structlog.get_logger()

S = TypeVar("S", bound=LogSettings)


def with_logging(settings: S) -> S:
    """Configure the log from the settings, and return them."""
    logs.configure(settings.log_level, settings.log_format)
    return settings


@contextlib.contextmanager
def logged(given: Mapping[str, Any]) -> Iterator[None]:
    """Configure the log from a command's options; log the error that ends the block, and exit with its code.

    The settings of the log are read first, so that mistakes in all others are reported in its format.
    """
    with_logging(_log_settings(given))
    try:
        yield
    except StreampcaError as error:
        code = exit_code_of(error)
        log.error("fatal error", error=" ".join(str(error).split()), exit_code=code)
        raise SystemExit(code) from None
    except Exception as error:
        log.error("unexpected error", error=f"{type(error).__name__}: {error}", exit_code=1, exc_info=True)
        raise SystemExit(1) from None


def _log_settings(given: Mapping[str, Any]) -> LogSettings:
    """The settings of the log; the defaults if there is a mistake, which reading all settings will report."""
    options = {name: value for name, value in given.items() if name in ("config", *LogSettings.model_fields)}
    try:
        return LogSettings.read(**options)
    except SettingsError:
        return LogSettings.model_validate({})

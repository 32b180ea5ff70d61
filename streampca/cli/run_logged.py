"""How commands log; an error that ends one that runs for long is the last line of its log."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import structlog

from streampca.errors import SettingsError, StreampcaError, exit_code_of, naming_the_extra
from streampca.process import logs
from streampca.settings.store import LogSettings

log = structlog.get_logger()

S = TypeVar("S", bound=LogSettings)


@contextlib.contextmanager
def run_logged(kind: type[S], given: Mapping[str, Any], *, logs_errors: bool = True) -> Iterator[S]:
    """Read the settings and configure the log; with `logs_errors` log the error that ends the block, and exit.

    The settings of the log are read first, so that mistakes in all others are reported in its format.
    """
    try:
        of_log = LogSettings.read(given.get("config"))
    except SettingsError:  # reading all settings will report it
        of_log = LogSettings.model_validate({})
    logs.configure(of_log.log_level)
    try:
        with naming_the_extra():
            yield kind.read(**given)
    except StreampcaError as error:
        if not logs_errors:
            raise
        code = exit_code_of(error)
        log.error("fatal error", error=" ".join(str(error).split()), exit_code=code)
        raise SystemExit(code) from None
    except Exception as error:
        if not logs_errors:
            raise
        log.error("unexpected error", error=f"{type(error).__name__}: {error}", exit_code=1, exc_info=True)
        raise SystemExit(1) from None

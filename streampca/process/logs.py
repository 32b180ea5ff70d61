"""Configures logging to stderr: one event a line, as JSON, or on a terminal as text for people.

Loggers of the standard library (kafka-python, uvicorn) use the same format. kafka-python reports an unreachable broker
several times a second, so its loggers are silent except at debug; the Kafka source reports it once.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SILENCED_LOGGERS = (
    "kafka",
    "numba",  # at debug, 20 MB for each compilation
    "uvicorn.access",  # metrics count the requests
    # These three log each request for a token.
    "httpx",
    "httpcore",
    "botocore",
)
# Loggers that may repeat an error many times a second.
_REPEATING_LOGGERS = (
    "asyncio",
    "uvicorn.error",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",  # logs each failed attempt
)
_REPEAT_AFTER_S = 60.0
_MAX_REMEMBERED = 1000  # messages


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Log events of this level and above to `stream`, by default stderr."""
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    field_processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ" if is_terminal else "iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _add_logger_name,
    ]
    renderers = _create_text_renderers() if is_terminal else _create_json_renderers()
    handler = logging.StreamHandler(stream)
    processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    # Events of libraries that use `logging` get the same fields, from `foreign_pre_chain`.
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=field_processors, processors=processors)
    handler.setFormatter(formatter)
    handler.addFilter(OncePerMinute(*_REPEATING_LOGGERS))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    _set_levels_of_libraries(is_debug=level == "debug")
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *field_processors,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # so that `configure` can be called again
    )


def _create_text_renderers() -> list[Processor]:
    # Other tracebacks show local variables, which may hold a password.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=True, sort_keys=False, exception_formatter=plain)]


def _create_json_renderers() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_to_json)]


def _set_levels_of_libraries(*, is_debug: bool) -> None:
    """Silence libraries that log too much, unless this program logs at level DEBUG."""
    # Never DEBUG: kafka-python would log everything that it sends, passwords included.
    level = logging.INFO if is_debug else logging.CRITICAL
    for name in _SILENCED_LOGGERS:
        logging.getLogger(name).setLevel(level)
    if is_debug:
        logging.getLogger("asyncio").setLevel(logging.INFO)  # it logs little, except at DEBUG


class OncePerMinute(logging.Filter):
    """Limits some loggers: a message is logged only if the same message was not logged within the last minute.

    Without this, a fault that each connection has could fill a disk.
    """

    def __init__(self, *names: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._names = names
        self._clock = clock
        self._logged_at: dict[tuple[str, ...], float] = {}  # by logger, message and cause

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the message of this record."""
        if record.name not in self._names:
            return True
        cause = repr(record.exc_info[1]) if record.exc_info else ""
        message = (record.name, str(record.msg)[:200], cause[:200])  # cut, to use little memory
        now = self._clock()
        last_logged_at = self._logged_at.get(message)
        if last_logged_at is not None and now - last_logged_at < _REPEAT_AFTER_S:
            return False
        if len(self._logged_at) >= _MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[message] = now
        return True


def _add_logger_name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the logger's name to events of other libraries, which log by the standard library."""
    record = event.get("_record")  # None for events of structlog
    if record is not None:
        event["logger"] = record.name
    return event


def _to_json(event: EventDict, default: object = None, **_: object) -> str:
    """Return the event as a JSON object that begins with time, level and event.

    structlog calls it like `json.dumps`, with arguments that are ignored.
    """
    first_fields = {name: event[name] for name in ("timestamp", "level", "event") if name in event}
    return orjson.dumps({**first_fields, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

"""Logging to stderr, one event a line, as JSON or, on a terminal, as text for people; configured by the command line.

Loggers of the standard library (kafka-python, uvicorn) use the same format. kafka-python reports an unreachable broker
several times a second, so its loggers are silenced except at debug; the Kafka source reports it once. numba logs 20 MB
a compilation at debug.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# uvicorn.access: metrics count the requests; httpx and botocore report tokens that are requested
_SILENCED = ("kafka", "numba", "uvicorn.access", "httpx", "httpcore", "botocore")

_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"  # logs each attempt
_REPEAT_AFTER_S, _MAX_REMEMBERED = 60.0, 1000


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Log to `stream` (stderr)."""
    stream = stream or sys.stderr
    common: list[Processor] = [  # for every event, from structlog or the standard library
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ" if stream.isatty() else "iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _add_logger_name,
    ]
    renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    if stream.isatty():  # no local variables in tracebacks: they could hold a password
        renderers = [
            structlog.dev.ConsoleRenderer(
                colors=True, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    handler = logging.StreamHandler(stream)
    processors = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=common, processors=processors))
    handler.addFilter(OncePerMinute("asyncio", "uvicorn.error", _EXPORTER))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in _SILENCED:
        # Never at debug: there kafka-python logs what it sends, passwords included.
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else logging.CRITICAL)
    if level == "debug":  # else the first line of a member would name the selector of its port's event loop
        logging.getLogger("asyncio").setLevel(logging.INFO)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a later call of configure must apply to every logger
    )


class OncePerMinute(logging.Filter):
    """Passes one of equal messages of these loggers a minute: a fault of every connection must not fill a disk."""

    def __init__(self, *names: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._names, self._clock = names, clock
        self._passed: dict[tuple[str, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in self._names:
            return True
        cause = repr(record.exc_info[1]) if record.exc_info else ""
        key, now = (record.name, str(record.msg)[:200], cause[:200]), self._clock()
        if now - self._passed.get(key, -_REPEAT_AFTER_S) < _REPEAT_AFTER_S:
            return False
        if len(self._passed) >= _MAX_REMEMBERED:
            self._passed.clear()
        self._passed[key] = now
        return True


def _add_logger_name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Add the logger's name to events of other libraries."""
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event


def _json(event: EventDict, default: object = None, **_: object) -> str:
    """One JSON object with time, level and event first; values that JSON does not know become text."""
    first = {name: event[name] for name in ("timestamp", "level", "event") if name in event}
    return orjson.dumps({**first, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

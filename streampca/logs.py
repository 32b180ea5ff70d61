"""Logs: one line an event on stderr, JSON for machines or text for people; configured once, by the command line.

The standard library's loggers (kafka-python, uvicorn) go the same way as ours. kafka-python reports an absent broker
several times a second, so its loggers are silent, unless ours are at debug: the Kafka source says it once. numba's at
debug write out every step of a compilation, 20 MB of them.
"""

import logging
import sys
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_SILENCED = ("kafka", "numba", "uvicorn.access")  # the last: requests are counted in metrics


def configure(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (stderr) in style "json", "human", or "auto": human on a terminal."""
    stream = stream or sys.stderr
    human = style == "human" or (style == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_common(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(human, colours=stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in _SILENCED:
        # Never at debug, where kafka-python writes out what it sends, passwords included.
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else logging.CRITICAL)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # so that a later call of configure holds for every logger
    )


def _common() -> list[Processor]:
    """What every event gets, ours or the standard library's."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _logger_of_others,
    ]


def _logger_of_others(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Name the logger of an event that is not ours, since its wording alone does not tell whose it is."""
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event


def _renderers(human: bool, colours: bool) -> list[Processor]:
    if human:
        # Without local variables in tracebacks, which could hold a password.
        renderer = structlog.dev.ConsoleRenderer(
            colors=colours, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
        )
        return [_whole_seconds, renderer]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]


def _whole_seconds(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["timestamp"] = f"{event['timestamp'][:19]}Z"
    return event


def _json(event: EventDict, default: object = None, **_: object) -> str:
    """One line, with time, level and event in front for the reader's eye; what JSON has no word for becomes text."""
    first = {name: event[name] for name in ("timestamp", "level", "event") if name in event}
    return orjson.dumps({**first, **event}, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

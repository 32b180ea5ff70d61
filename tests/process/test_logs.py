"""Logs of streampca and of libraries: one JSON object per line, no noise from kafka-python, no secrets."""

import datetime
import io
import json
import logging
import re
from pathlib import Path

import pytest
import structlog

from streampca.process import logs
from tests.waiting import Clock

pytestmark = pytest.mark.usefixtures("restored_logging")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """The written text, without colours."""
        return re.sub(r"\x1b\[\d*m", "", self.getvalue())


def configure_logs(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, stream)
    return stream


def test_each_event_is_a_json_object_on_one_line() -> None:
    stream = configure_logs()
    structlog.get_logger().info("model published", version=5, path=Path("x"), positions={0: 7})
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert event["event"] == "model published"
    assert (event["version"], event["path"], event["positions"]) == (5, "x", {"0": 7})
    assert datetime.datetime.fromisoformat(event["timestamp"]).utcoffset() == datetime.timedelta(0)


def test_events_of_libraries_below_the_level_are_not_logged() -> None:
    stream = configure_logs("warning")
    structlog.get_logger().info("not this")
    logging.getLogger("other").info("nor this")
    structlog.get_logger().warning("this")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["this"]


@pytest.mark.parametrize(("level", "is_logged"), [("info", False), ("debug", True)])
def test_kafka_python_logs_only_at_debug_and_never_what_it_sends(level: str, is_logged: bool) -> None:
    stream = configure_logs(level)
    logging.getLogger("kafka.protocol.parser").debug("Send: b'\\x00me\\x00hush'")
    logging.getLogger("kafka.net.manager").error("Connection failed")
    assert "hush" not in stream.getvalue()
    assert ("Connection failed" in stream.getvalue()) == is_logged


def test_a_terminal_shows_text_for_people() -> None:
    stream = Terminal()
    logs.configure(stream=stream)
    structlog.get_logger().info("model published", version=5, seconds=0.1)
    assert "model published" in stream.text()
    assert "version=5 seconds=0.1" in stream.text()  # in the order of the arguments
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", stream.text())


def test_a_repeated_message_is_logged_once_a_minute() -> None:
    clock = Clock()
    once = logs.OncePerMinute("asyncio", clock=clock)

    def passes(name: str, text: str, error: Exception | None = None) -> bool:
        exc_info = (type(error), error, None) if error else None
        return once.filter(logging.LogRecord(name, logging.ERROR, "", 0, text, (), exc_info))

    assert [passes("asyncio", "socket.accept() out of system resource") for _ in range(3)] == [True, False, False]
    assert passes("asyncio", "another")
    assert passes("asyncio", "another", ValueError("x"))
    assert not passes("asyncio", "another", ValueError("x"))
    assert all(passes("streampca", "ours") for _ in range(3))
    clock.now = 60.0
    assert passes("asyncio", "socket.accept() out of system resource")

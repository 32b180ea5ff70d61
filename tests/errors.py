"""Errors and log lines that a user reads."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.typing import EventDict


def refusal(kind: type[Exception], action: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The sentence of the error that an action raises; it is one line."""
    with pytest.raises(kind) as caught:
        action(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def logged(events: list[EventDict]) -> list[str]:
    """The lines of a log that an operator reads: those above debug."""
    return [str(event["event"]) for event in logged_events(events)]


def logged_events(events: list[EventDict]) -> list[EventDict]:
    """The lines of a log above debug, with all their fields."""
    return [event for event in events if event["log_level"] != "debug"]

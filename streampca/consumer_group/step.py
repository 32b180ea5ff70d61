"""The steps of a member's start, which `streampca doctor` also runs."""

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple


class NotYetError(TimeoutError):
    """What a step uses does not exist yet, which is not a mistake: a start waits for it."""


class Step(NamedTuple):
    """One step of a start."""

    name: str
    attempt: Callable[[], str]
    """Do the step, and return in one sentence what was found.

    If a later attempt may succeed, raises `StoreBusyError`, `NoBrokerError` or `TimeoutError`; for a mistake, another
    `StreampcaError`.
    """
    after: Collection[str] = ()
    """The names of the earlier steps whose results this step uses."""
    waits_for: Literal["the store", "brokers", "the schema registry", "model"] = "brokers"
    """What a start waits for when a later attempt may succeed."""
    check: Callable[[], str] | None = None
    """If the attempt writes or takes long, what doctor does instead: it finds the same mistakes and writes nothing."""

"""The steps of a member's start, which `streampca doctor` runs as well."""

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple


class NotYetError(TimeoutError):
    """Nothing is wrong, but what a step needs does not exist yet: a start waits for it."""


class Step(NamedTuple):
    """One step of a start."""

    name: str
    attempt: Callable[[], str]
    """Does the step, and returns in one sentence what it found.

    Raises `StoreBusyError`, `NoBrokerError` or `TimeoutError` if a later attempt may succeed, and another
    `StreampcaError` for a mistake.
    """
    after: Collection[str] = ()
    """The names of the earlier steps whose results this step uses."""
    waits_for: Literal["the store", "brokers", "the schema registry", "model"] = "brokers"
    """What is away when a later attempt may succeed."""
    check: Callable[[], str] | None = None
    """If the attempt writes or takes long: what doctor does instead. Names the same mistakes, and changes nothing."""

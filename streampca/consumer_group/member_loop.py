"""The loop that worker and transform share: it runs turns until it is stopped, and then leaves the group."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from streampca.consumer_group import events
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.name_check import NameCheck
from streampca.errors import StreampcaError
from streampca.formats.seen_names import SeenNames
from streampca.process import watchdog
from streampca.sources.base import Source
from streampca.sources.events import Event


class MemberLoop(ABC):
    """A member of the group, which works in the thread that calls `run`; subclasses say what a turn does."""

    def __init__(self, source: Source, in_flight: InFlight[Any], notify: events.Notify, seen_names: SeenNames) -> None:
        """Create a loop, which warns once of names in the setting `field` that have no number in the first records.

        `seen_names` collects the names that had a number in any of these records.
        """
        self._source = source
        self._in_flight = in_flight
        self._notify = notify
        self._name_check = NameCheck(seen_names)
        self._stop_cause: str | None = None

    def stop(self, cause: str) -> None:
        """End the loop after the current turn. Safe to call from a signal handler."""
        self._stop_cause = self._stop_cause or cause

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Run turns until `stop` is called, then leave the group.

        Raises `StreampcaError` for an error that restarting cannot fix.
        """
        try:
            self._begin(clock)
            while self._stop_cause is None:
                watchdog.tick()
                self._turn(clock)
                self._warn_of_names_without_numbers(clock)  # at most once
                self._notify(events.LoopTicked(self._source.status(), self._is_saving))
        except StreampcaError as error:
            self.stop(str(error))
            raise
        finally:
            self._notify(events.MemberStopping(self._stop_cause or "crashed"))
            self._in_flight.close()
            self._leave()

    def _handle_events(self, poll_s: float) -> None:
        """Poll the source for `poll_s` at most; handle its events, then the results that threads have finished."""
        for event in self._in_flight.poll(self._source, poll_s):  # does not poll while too much is in flight
            watchdog.tick()
            self._handle(event)
        self._in_flight.handle_ended()

    def _warn_of_names_without_numbers(self, clock: Callable[[], float]) -> None:
        """Once enough records were read, report the names in the setting `field` without a number in any of them.

        Such a name may be misspelt.
        """
        if not self._name_check.is_checking:
            return
        message = self._name_check.find_warning(clock())
        if message:  # "": too few records so far, or no such name
            self._notify(events.FieldNamesWithoutNumbers(message))

    @property
    def _is_saving(self) -> bool:
        """Whether a save has begun and not ended."""
        return False

    def _begin(self, clock: Callable[[], float]) -> None:  # noqa: B027 - not every role needs it
        """Prepare for the first turn."""

    @abstractmethod
    def _turn(self, clock: Callable[[], float]) -> None:
        """Poll and handle events once, and do what is due by the clock."""

    @abstractmethod
    def _handle(self, event: Event) -> None:
        """Handle an event of the source."""

    @abstractmethod
    def _leave(self) -> None:
        """Finish or abort what was begun, leave the group, and close what the member uses. Called after errors, too."""

"""Whether a member is healthy, and ready, as its probes say."""

import time
from collections.abc import Callable
from typing import NamedTuple

from streampca.consumer_group import events

_STUCK_AFTER_S = 60.0  # without a tick: longer than any single step of the loop takes, even with a slow disk
_STARTED_AFTER_S = 300.0  # to the first tick: a throttled container may take minutes to compile its kernels
_SETTLED_AFTER_S = 10.0  # in a group without partitions: another assignment often follows a first empty one


class Failure(NamedTuple):
    """Why a probe fails."""

    kind: str  # all that is said where others need a token, and there is none
    cause: str


class HealthListener(events.Listener):
    """Tracks whether the loop runs and whether the member is in its consumer group; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_tick, self._limit_s = clock(), _STARTED_AFTER_S
        self._member, self._member_since = False, clock()
        self._joined = False
        self._stopping, self._away, self._unsaved = "", "", ""

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.StartDelayed(needs, cause):
                self._last_tick, self._away = self._clock(), f": {cause}" if needs == "brokers" else ""
            case events.LoopTicked():
                self._last_tick, self._limit_s = self._clock(), _STUCK_AFTER_S
            case events.SourcePolled(status):
                self._away = f": {status.cause or 'no broker answers'}" if status.cause or not status.connected else ""
                if status.member != self._member:
                    self._member, self._member_since = status.member, self._clock()
                elif self._clock() - self._member_since >= _SETTLED_AFTER_S:  # a standby without partitions, too
                    self._joined = self._member
            case events.PartitionsAssigned():
                self._joined = True
            case events.PartitionsReleased(_, lost):
                self._joined = not lost  # a member whose partitions are revoked stays in the group
                self._member = self._member and not lost
            case events.SaveOverdue(seconds, _, restart_helps):
                silent = f"nothing was saved for {seconds:.0f} s: no broker answers a client, but a new one"
                self._unsaved = silent if restart_helps else ""
            case events.MemberStopping(cause):
                self._stopping = cause

    def why_unhealthy(self) -> Failure | None:
        """Why the process should be restarted; None while it is healthy."""
        silence = self._clock() - self._last_tick
        if silence > self._limit_s:
            return Failure("loop", f"the loop has not run for {silence:.0f} s")
        return Failure("saving", self._unsaved) if self._unsaved else None

    def why_not_ready(self) -> Failure | None:
        """Why the member is not ready; None while it is."""
        if self._stopping:
            return Failure("stopping", f"stopping: {self._stopping}")
        if self._joined:
            return None
        kind = "certificate" if "certificate" in self._away else "broker" if self._away else "group"
        return Failure(kind, f"no place in the consumer group yet{self._away}")

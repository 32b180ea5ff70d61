"""Finds partitions whose reading stands still because a transaction of another producer is open."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from streampca.sources.read_positions import Reached

STANDSTILL_S = 20.0  # a partition whose position did not change for this long is looked at


class _Standstill(NamedTuple):
    """A position before the end of its partition, and since when it has not changed."""

    position: int
    since: float  # seconds since 1970


class StandstillSearch:
    """Remembers standstills: positions before the end of their partition that do not change.

    All times are in seconds since 1970.
    """

    def __init__(self, committed_ends: Callable[[Collection[int]], Mapping[int, int]]) -> None:
        """`committed_ends` asks brokers where the committed records of partitions end. It may raise `TimeoutError`."""
        self._committed_ends = committed_ends
        # By partition: since when nothing was read, although the partition has further records.
        self._standstills: dict[int, _Standstill] = {}
        self._next_question_at = 0.0  # when brokers may be asked again for the committed ends
        self.blocked_since: float | None = None  # since when an open transaction has blocked a partition

    def update(self, positions: Mapping[int, Reached], now: float, *, is_connected: bool) -> None:
        """Note which positions have not changed. If one stays for 20 seconds, ask whether a transaction blocks it."""
        self._standstills = self._find_standstills(positions, now)
        suspects = {
            partition: standstill
            for partition, standstill in self._standstills.items()
            if now - standstill.since >= STANDSTILL_S
        }
        if not suspects:
            self.blocked_since = None
        elif is_connected and now >= self._next_question_at:
            self._next_question_at = now + STANDSTILL_S
            with suppress(TimeoutError):
                self.blocked_since = self._find_blocked_since(suspects)

    def _find_standstills(self, positions: Mapping[int, Reached], now: float) -> dict[int, _Standstill]:
        """Return the positions before the end of their partition, each with the time since which it has not changed."""
        standstills = {}
        for partition, reached in positions.items():
            is_before_end = 0 <= reached.next < reached.end  # negative: unknown
            if not is_before_end:
                continue
            standstill = self._standstills.get(partition)
            if standstill is None or standstill.position != reached.next:
                standstill = _Standstill(reached.next, since=now)
            standstills[partition] = standstill
        return standstills

    def _find_blocked_since(self, suspects: Mapping[int, _Standstill]) -> float | None:
        """Return since when an open transaction has blocked one of these partitions; None if none is blocked."""
        committed_ends = self._committed_ends(suspects.keys())
        # The committed records of a partition end where its oldest open transaction begins. A suspect at this end is
        # blocked by the transaction. A suspect before this end has records to read, so it has another reason.
        blocked_since = [
            standstill.since
            for partition, standstill in suspects.items()
            if standstill.position >= committed_ends[partition]
        ]
        return min(blocked_since, default=None)

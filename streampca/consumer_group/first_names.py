"""Looks for names in `field` at which no record has a number, among the records that a member reads first."""

from streampca.consumer_group.countdown import Countdown
from streampca.formats.seen_names import SeenNames
from streampca.sources.events import Vectors

_RECORDS = 1000
_LONGEST_S = 600.0  # after this time, fewer records are enough


class FirstNames:
    """Looks at which names the records of a member have numbers.

    It stops after 1,000 records, or after ten minutes if fewer have come.
    """

    def __init__(self, seen: SeenNames) -> None:
        self._seen = seen
        self._records_left = _RECORDS
        self._time = Countdown(_LONGEST_S)
        self._has_seen_enough = False

    @property
    def is_searching(self) -> bool:
        """Whether further records will be looked at, and there are names at which no record has had a number yet."""
        return self._seen.has_unseen and not self._has_seen_enough

    def add(self, batch: Vectors) -> None:
        """Look at the vectors of a batch."""
        if self.is_searching:
            self._seen.add(batch.decoded.vectors)
            self._records_left -= len(batch.decoded.indices)

    def find_unseen(self, now: float) -> str:
        """Return a message about the names at which no record had a number, or "".

        `now` is in monotonic seconds.
        """
        is_time_over = self._time.is_over(now)
        self._has_seen_enough = is_time_over or self._records_left <= 0
        if not self._has_seen_enough:
            return ""
        return self._seen.describe_unseen("the first records")

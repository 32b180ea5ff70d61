"""Looks for names in `field` under which none of the records that a member reads first has a number."""

from streampca.consumer_group.countdown import Countdown
from streampca.formats.seen_names import SeenNames
from streampca.sources.events import Vectors

_CHECKED_RECORDS = 1000
_LONGEST_CHECK_S = 600.0  # after this time, fewer records are enough


class NameCheck:
    """Looks for names in `field` under which no record of a member has a number, such as misspelt names.

    It stops after 1,000 records, or after ten minutes if fewer have come.
    """

    def __init__(self, seen: SeenNames) -> None:
        """`seen` collects the names under which some vector has had a number."""
        self._seen = seen
        self._records_left = _CHECKED_RECORDS
        self._longest_check = Countdown(_LONGEST_CHECK_S)
        self._has_seen_enough = False

    @property
    def is_checking(self) -> bool:
        """Whether further records will be looked at, and there are names under which no record has had a number."""
        return self._seen.has_unseen and not self._has_seen_enough

    def add(self, batch: Vectors) -> None:
        """Look at the vectors of a batch."""
        if self.is_checking:
            self._seen.add(batch.decoded.vectors)
            self._records_left -= len(batch.decoded.indices)

    def find_warning(self, now: float) -> str:
        """Return a warning that lists the names in `field` at which no record so far has had a number.

        Return "" if there are no such names, or if too few records were read to say so. `now` is in monotonic seconds.
        """
        is_time_over = self._longest_check.is_over(now)
        self._has_seen_enough = is_time_over or self._records_left <= 0
        if not self._has_seen_enough:
            return ""
        return self._seen.describe_unseen("the first records")

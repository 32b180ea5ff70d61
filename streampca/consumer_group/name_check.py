"""Looks for names in the setting `field` that have no number in any of the records that a member reads first."""

from streampca.consumer_group.countdown import Countdown
from streampca.formats.seen_names import SeenNames
from streampca.sources.events import Vectors

_CHECKED_RECORDS = 1000
_LONGEST_CHECK_S = 600.0  # after this time, fewer records are enough


class NameCheck:
    """Looks for names in the setting `field` that have no number in any record, such as misspelt names.

    The check ends after 1,000 records, or after ten minutes if fewer have come.
    """

    def __init__(self, seen: SeenNames) -> None:
        """`seen` notes which names in the setting `field` have had a number in any vector."""
        self._seen = seen
        self._records_left = _CHECKED_RECORDS  # so many more are to be looked at
        self._time_limit = Countdown(_LONGEST_CHECK_S)
        self._has_seen_enough = False  # the last `find_warning` found that the check is over

    @property
    def is_checking(self) -> bool:
        """Whether the check goes on: it is not over, and some names have had no number in any record so far."""
        return self._seen.has_unseen and not self._has_seen_enough

    def add(self, batch: Vectors) -> None:
        """Look at the vectors of a batch."""
        if self.is_checking:
            self._seen.add_from(batch.decoded.vectors)
            self._records_left -= len(batch.decoded.indices)

    def find_warning(self, now: float) -> str:
        """Return a warning that lists those names in the setting `field` for which no record so far had a number.

        Return "" if there are no such names, or if too few records were read to say so. `now` is in monotonic seconds.
        """
        is_time_over = self._time_limit.is_over(now)
        self._has_seen_enough = is_time_over or self._records_left <= 0
        if not self._has_seen_enough:
            return ""
        return self._seen.describe_unseen("the first records")

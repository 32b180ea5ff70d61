"""Looks for names in `field` at which none of a member's first records has a number."""

from streampca.formats.seen_names import SeenNames
from streampca.sources.events import Vectors

_RECORDS = 1000
_LONGEST_S = 600.0  # after this time, fewer records are enough


class FirstNames:
    """Looks at which names the first records of a member have numbers.

    The first records are the first 1,000 ones, or all that come in the first ten minutes if they are fewer.
    """

    def __init__(self, seen: SeenNames) -> None:
        self._seen = seen
        self._records_left = _RECORDS
        self._ends_at: float | None = None  # monotonic seconds; None before the first call of `find_unseen`
        self._is_over = False

    @property
    def may_be_unseen(self) -> bool:
        """Whether more first records will come, and there are names at which no record has had a number yet."""
        return self._seen.has_unseen and not self._is_over

    def add(self, batch: Vectors) -> None:
        """Look at the vectors of a batch."""
        if self.may_be_unseen:
            self._seen.add(batch.decoded.vectors)
            self._records_left -= len(batch.decoded.indices)

    def find_unseen(self, now: float) -> str:
        """Return a message about the names for which no first record had a number, or "" if there is no such name.

        Returns "" until the first records are over: after 1,000 records, or ten minutes after the first call. `now` is
        in monotonic seconds.
        """
        if self._ends_at is None:  # the first call: the ten minutes begin
            self._ends_at = now + _LONGEST_S
        self._is_over = self._records_left <= 0 or now >= self._ends_at
        return self._seen.describe_unseen("the first records") if self._is_over else ""

"""What ends a member: one rejected record, or a partition most of whose last records are rejected."""

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streampca.errors import BadRecordError, RejectLimitError
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors

_WINDOW = 1000  # records that the limit is a share of
_FIRST = 100  # if all of the first ones are rejected, that is enough
_RECENT = 10  # records that decide whether the last ones were mostly rejected


def bad_record(topic: str, event: Vectors, reject: Reject) -> BadRecordError:
    """The error of a member that stops at a rejected record."""
    return BadRecordError(
        f"partition {event.partition} of {topic}, offset {event.records[reject.place].offset}: {reject.message} "
        f"({reject.reason}); set dead_letter_topic to send such records there, or on_bad_record=skip; "
        "if all records are like this, correct format, field or dimensions"
    )


class _Rejected(NamedTuple):
    number: int  # of the record, since the assignment
    offset: int
    reason: str
    message: str


class RejectWindow:
    """The rejects among the last 1,000 records of a partition."""

    def __init__(self, share: float) -> None:
        self._share, self._seen = share, 0
        self._rejects: deque[_Rejected] = deque()

    def add(self, event: Vectors, rejects: Sequence[Reject]) -> bool:
        """Count a batch; return True as soon as the limit is exceeded."""
        for reject in rejects:
            number = self._seen + reject.place
            self._drop(number)
            self._rejects.append(_Rejected(number, event.records[reject.place].offset, reject.reason, reject.message))
            all_failed = number + 1 == _FIRST == len(self._rejects)
            if self._share < 1 and (all_failed or len(self._rejects) > self._share * _WINDOW):
                self._seen = number + 1
                return True
        self._seen += len(event.records)
        self._drop(self._seen - 1)
        return False

    @property
    def is_suspicious(self) -> bool:
        """Whether the limit is exceeded among the last 10 records, or the fewer that there are."""
        last = itertools.islice(reversed(self._rejects), _RECENT)
        recent = sum(rejected.number >= self._seen - _RECENT for rejected in last)
        return recent > self._share * min(self._seen, _RECENT)

    def describe(self) -> str:
        """What the rejects have in common."""
        seen, count = min(self._seen, _WINDOW), len(self._rejects)
        which = f"the first {seen}" if count == seen == self._seen else f"{count} of the last {seen}"
        ((reason, most),) = Counter(rejected.reason for rejected in self._rejects).most_common(1)
        example = next(rejected for rejected in self._rejects if rejected.reason == reason)
        share = "all" if most == count else f"{most} of them"
        return (
            f"{which} records were rejected, the first at offset {self._rejects[0].offset}; "
            f"{share} as {reason}, such as offset {example.offset}: {example.message}"
        )

    def count_before(self, position: int) -> int:
        """The number of rejects before an offset."""
        return sum(rejected.offset < position for rejected in self._rejects)

    def _drop(self, number: int) -> None:
        while self._rejects and self._rejects[0].number <= number - _WINDOW:
            self._rejects.popleft()


class RejectLimit:
    """The rejects of all partitions of a member, each counted from its assignment."""

    def __init__(self, topic: str, share: float, settings: str) -> None:
        """`settings` are those that may be wrong if the limit is exceeded."""
        self._topic, self._settings = topic, settings
        self._windows = defaultdict[int, RejectWindow](lambda: RejectWindow(share))

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop partitions that were revoked or lost."""
        for partition in partitions:
            self._windows.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject], final: int) -> bool:
        """Count the next records of a partition; returns whether the last ones were mostly rejected.

        Raises `RejectLimitError` if there are too many. Rejects before the offset `final` will not be read again.
        """
        window = self._windows[event.partition]
        if window.add(event, rejects):
            passed = window.count_before(final)
            fate = f"all but {passed} of them" if passed else "all of them"
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: {window.describe()}; correct the settings "
                f"({self._settings}) or the producer and start again, which reads {fate} again; "
                "or accept rejects: max_rejected_share=1"
            )
        return window.is_suspicious

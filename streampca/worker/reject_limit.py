"""Ends the worker when most records of a partition are rejected, as they are when a setting or a producer is wrong.

While the last records were mostly rejected, the rejects are held back: they are not sent to the dead-letter topic, and
no checkpoint passes them. So if the worker ends, they are read again, with corrected settings. After a minute they are
released: a few bad records on a quiet topic must not wait for ever. Everything counts from the partition's assignment.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streampca.errors import RejectLimitError
from streampca.stream.decoded import Reject
from streampca.stream.fold import Fold
from streampca.stream.guard import OUTLIER
from streampca.stream.record import Record, Vectors

_WINDOW = 1000  # records that the limit is a share of
_FIRST = 100  # if all of the first ones are rejected, that is enough
_RECENT = 10  # rejects are held back while the limit is exceeded among so many of the last records
_HOLD_S = 60.0
_HELD_BYTES, _OVERHEAD = 32 * 2**20, 1000  # of values in a partition, and beside each value

Send = Callable[[int, Record, Reject], None]


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

    def is_exceeded_by(self, event: Vectors, rejects: Sequence[Reject]) -> bool:
        """Add records and the rejects among them; whether there are too many now. If so, the rest is not added."""
        for reject in rejects:
            if reject.reason == OUTLIER:  # a good record, as the guard's settings want it
                continue
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

    def error(self, place: str, settings: str, passed: int) -> RejectLimitError:
        """The limit is exceeded at `place`; so many rejects are final, and `settings` may be wrong."""
        fate = f"all but {passed} of them" if passed else "all of them"
        return RejectLimitError(
            f"{place}: {self.describe()}; correct the settings ({settings}) or the producer and start again, "
            f"which reads {fate} again; or accept rejects: max_rejected_share=1"
        )

    def before(self, position: int) -> int:
        """The number of rejects before an offset."""
        return sum(rejected.offset < position for rejected in self._rejects)

    def _drop(self, number: int) -> None:
        while self._rejects and self._rejects[0].number <= number - _WINDOW:
            self._rejects.popleft()


@dataclass
class _Held:
    fold: Fold  # before the first of these
    letters: list[tuple[Record, Reject]] = field(default_factory=list)
    nbytes: int = 0
    until: float | None = None

    def add(self, event: Vectors, rejects: Iterable[Reject]) -> None:
        for reject in rejects:
            record = event.records[reject.place]
            self.letters.append((record, reject))
            self.nbytes += len(record.value or b"") + _OVERHEAD


class RejectLimit:
    """The windows and the held rejects of all partitions of a worker; `send` writes a dead letter."""

    def __init__(self, topic: str, share: float, send: Send) -> None:
        self._topic, self._share, self._send = topic, share, send
        self._windows: dict[int, RejectWindow] = {}
        self._held: dict[int, _Held] = {}

    def begin(self, partitions: Iterable[int]) -> None:
        """Count from here: these partitions were just assigned."""
        self._windows |= {partition: RejectWindow(self._share) for partition in partitions}

    def forget(self, partition: int) -> None:
        """Drop a partition that was revoked or lost; its next owner reads the held records again."""
        self._windows.pop(partition, None)
        self._held.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject], fold: Fold) -> None:
        """Send or hold the rejects among the next records of a partition, whose fold before them is `fold`.

        Raises `RejectLimitError` if there are too many, and sends none of these.
        """
        partition, window = event.partition, self._windows[event.partition]
        if window.is_exceeded_by(event, rejects):
            raise self._error(partition, fold)
        held = self._held.get(partition) or _Held(fold)
        held.add(event, rejects)
        if held.letters:
            self._held[partition] = held
            if not window.is_suspicious or held.nbytes > _HELD_BYTES:
                self._release(partition)

    def savable(self, folds: Mapping[int, Fold]) -> dict[int, Fold]:
        """The folds, but without the records from the first held reject on."""
        return {p: self._held[p].fold if p in self._held else fold for p, fold in folds.items()}

    def release_when_due(self, now: float) -> None:
        """Send what was held for a minute, which starts with the first call after it was taken."""
        for partition, held in list(self._held.items()):
            if held.until is None:
                held.until = now + _HOLD_S
            elif now >= held.until:
                self._release(partition)

    def _release(self, partition: int) -> None:
        for record, reject in self._held.pop(partition).letters:
            self._send(partition, record, reject)

    def _error(self, partition: int, fold: Fold) -> RejectLimitError:
        window, held = self._windows[partition], self._held.get(partition)
        passed = window.before((held.fold if held else fold).position)
        return window.error(f"partition {partition} of {self._topic}", "dimensions, format, field", passed)

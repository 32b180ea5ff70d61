"""Ends the worker when most records of a partition are rejected, as they are when a setting or a producer is wrong.

While the last records were mostly rejected, the rejects are held back: they are not sent to the dead-letter topic, and
no checkpoint passes them. So if the worker ends, they are read again, with corrected settings. After a minute they are
released: a few bad records on a quiet topic must not wait for ever. Everything counts from the partition's assignment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streampca.consumer_group.rejects import RejectWindow
from streampca.errors import RejectLimitError
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold
from streampca.stream.record import Record

_HOLD_S = 60.0
_HELD_BYTES, _OVERHEAD = 32 * 2**20, 1000  # of values in a partition, and beside each value

Send = Callable[[int, Record, Reject], None]


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
        self._topic, self._send = topic, send
        self._windows = defaultdict[int, RejectWindow](lambda: RejectWindow(share))
        self._held: dict[int, _Held] = {}

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop partitions that were revoked or lost; their next owners read the held records again."""
        for partition in partitions:
            self._windows.pop(partition, None)
            self._held.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject], fold: Fold) -> None:
        """Send or hold the rejects among the next records of a partition, whose fold before them is `fold`.

        Raises `RejectLimitError` if there are too many, and sends none of these.
        """
        partition, window = event.partition, self._windows[event.partition]
        if window.add(event, rejects):
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
        passed = window.count_before((held.fold if held else fold).position)
        return window.error(f"partition {partition} of {self._topic}", "dimensions, format, field", passed)

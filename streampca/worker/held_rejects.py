"""Holds rejects back while most of a partition's last records are rejected, as they are when a setting is wrong.

They are not sent to the dead-letter topic, and no checkpoint passes them. So if the worker ends, they are read again,
with corrected settings. After a minute they are released: a few bad records on a quiet topic must not wait for ever.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold
from streampca.stream.record import Record

_HOLD_S = 60.0
_HELD_BYTES, _OVERHEAD = 32 * 2**20, 1000  # of values in a partition, and beside each value


@dataclass
class _Held:
    fold: Fold  # before the first of these
    letters: list[tuple[Record, Reject]] = field(default_factory=list)
    nbytes: int = 0
    until: float | None = None


class HeldRejects:
    """The held rejects of all partitions of a worker; `send` writes a dead letter."""

    def __init__(self, send: Callable[[int, Record, Reject], None]) -> None:
        self._send = send
        self._held: dict[int, _Held] = {}

    def forget(self, partitions: Iterable[int]) -> None:
        """Drop partitions that were revoked or lost; their next owners read the held records again."""
        for partition in partitions:
            self._held.pop(partition, None)

    def take(self, event: Vectors, rejects: Sequence[Reject], fold: Fold, *, hold: bool) -> None:
        """Hold or send the rejects among the next records of a partition, whose fold before them is `fold`."""
        held = self._held.get(event.partition) or _Held(fold)
        for reject in rejects:
            record = event.records[reject.place]
            held.letters.append((record, reject))
            held.nbytes += len(record.value or b"") + _OVERHEAD
        if held.letters:
            self._held[event.partition] = held
            if not hold or held.nbytes > _HELD_BYTES:
                self._release(event.partition)

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

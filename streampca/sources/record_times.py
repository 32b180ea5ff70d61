"""Timestamps of records that are written to a topic: the time of sending replaces those that the topic does not keep.

A broker refuses records that are older or further ahead than its topic allows, and with one of them all that came in
the same request. It deletes records that are older than the topic's retention. Such a record is written with the time
of sending, and its own time in a header.

A topic's rules may be unknown, or have changed: then a refused transaction is sent again with more times replaced. If
the time of sending is refused, too, this machine's clock is wrong: in the last try each record has its own time, a dead
letter that of the record which it is made of.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import structlog
from numpy.typing import NDArray

from streampca.errors import SourceError
from streampca.sources.base import OutgoingFields, RecordRefusedError, Transactions
from streampca.sources.dead_letters import own_time

HEADER = "streampca.timestamp"  # of a record with the time of sending: its own, in milliseconds, as decimal text

_FOREVER = 2**63 - 1
_SOON_MS = 5 * 60_000  # brokers look for records to delete every five minutes by default
REFUSED_TIME = {32, 87}  # invalid timestamp; invalid record: the clients' code of one among others in a request
_TRIES = ((_FOREVER, _FOREVER), (3_600_000, 0), (-1, 0))  # `kept_ms` of each try but the last; the third keeps no time

log = structlog.get_logger()


def kept_ms(configs: Mapping[str, str]) -> tuple[int, int]:
    """How far before and after now a topic with these options keeps timestamps; without limit if they are unknown."""
    if configs.get("message.timestamp.type") == "LogAppendTime":  # the broker replaces all, and refuses none
        return _FOREVER, _FOREVER
    numbers = {name: int(value) for name, value in configs.items() if value.isdecimal()}
    both = numbers.get("message.timestamp.difference.max.ms", _FOREVER)  # before Kafka 4
    before, after = (numbers.get(f"message.timestamp.{side}.max.ms", _FOREVER) for side in ("before", "after"))
    before, after = (both if limit == _FOREVER else limit for limit in (before, after))  # as Kafka 3.6 to 3.9
    is_cut = "delete" in configs.get("cleanup.policy", "delete")
    retention = numbers.get("retention.ms", _FOREVER) if is_cut else _FOREVER  # -1, which is no decimal: for ever
    # What is deleted within minutes counts as deleted at once, unless the topic keeps nothing for longer.
    return min(before, retention - min(retention // 2, _SOON_MS)), after


class RecordTimes:
    """Replaces timestamps in records for one topic, by its rules and its brokers' refusals."""

    def __init__(self, topic: str, transactions: Transactions, clock: Callable[[], float] = time.time) -> None:
        self._topic, self._transactions, self._clock = topic, transactions, clock
        self.tries, self._logged = 0, False  # tries of the transaction that have failed

    def sendable(
        self, records: Sequence[OutgoingFields], timestamps: NDArray[np.int64] | None = None
    ) -> tuple[Sequence[OutgoingFields], int]:
        """The records with times that the topic keeps, and how many were replaced.

        `timestamps`, which include all theirs, spare looking at each record where none is replaced.
        """
        if self.tries == len(_TRIES):
            return [_with_own_time(record) for record in records], 0
        now = int(self._clock() * 1000)
        before, after = map(min, kept_ms(self._transactions.topic_configs()), _TRIES[self.tries])
        first, last = now - before, now + after
        if timestamps is not None and first <= timestamps.min(initial=now) and timestamps.max(initial=now) <= last:
            return records, 0
        sent = [_kept(record, first, last) for record in records]
        replaced = [own[-1] for own, kept in zip(records, sent, strict=True) if kept is not own]
        if replaced and not self._logged:
            log.warning(
                "timestamps replaced", topic=self._topic, header=HEADER, first=min(replaced), last=max(replaced)
            )
            self._logged = True
        return sent, len(replaced)

    def retry(self, error: RecordRefusedError) -> None:
        """Replace more times in the next try. Raises `SourceError` if that does not help."""
        self.tries += 1
        if error.code not in REFUSED_TIME or self.tries > len(_TRIES):
            raise SourceError(str(error)) from None


def _with_own_time(record: OutgoingFields) -> OutgoingFields:
    topic, partition, value, key, headers, timestamp = record
    return topic, partition, value, key, headers, own_time(headers) if timestamp < 0 else timestamp


def _kept(record: OutgoingFields, first: int, last: int) -> OutgoingFields:
    """The record; with the time of sending, and its own in the header, if that is not from `first` to `last`."""
    topic, partition, value, key, headers, timestamp = record
    if timestamp < 0 or first <= timestamp <= last:
        return record
    others = [header for header in headers if header[0] != HEADER]
    return topic, partition, value, key, [*others, (HEADER, b"%d" % timestamp)], -1

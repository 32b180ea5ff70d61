"""Timestamps of records that are written to a topic: the time of sending replaces those that the topic does not keep.

A topic does not keep a timestamp in two cases. If it is older or further ahead than the topic allows, a broker refuses
the record, and with it all records of the same request. If it is older than the topic's retention, the broker deletes
the record. Such a record is written with the time of sending, and its own time in a header.

The topic's rules may be unknown, or may have changed. If a transaction is refused for a timestamp, it is tried again
with more timestamps replaced. If the time of sending is refused, too, this machine's clock is wrong: in the last try
each record has its own time, and a dead letter the time of its record.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from streampca.errors import SourceError
from streampca.sources.base import OutgoingFields, RecordRefusedError, Transactions
from streampca.sources.dead_letters import read_own_time

HEADER = "streampca.timestamp"  # of a record with the time of sending: its own time, in milliseconds, as decimal text

# Codes of errors in Kafka's protocol: invalid timestamp, and invalid record. The clients report the second code if the
# record was sent in one request with others.
REFUSED_TIME = {32, 87}

_FOREVER = 2**63 - 1  # milliseconds
_DELETED_SOON_MS = 5 * 60_000  # brokers look for records to delete every five minutes by default
_TIME_OF_SENDING = -1  # in place of a timestamp

log = structlog.get_logger()


class KeptTimes(NamedTuple):
    """How far before and after now a timestamp may be for a record to be written with it, milliseconds."""

    before_ms: int
    after_ms: int


# Limits of each try beside the topic's. The last try, which follows these, has no limits: it sends records' own times.
_LIMITS_OF_TRIES = (
    KeptTimes(_FOREVER, _FOREVER),
    KeptTimes(before_ms=3_600_000, after_ms=0),
    KeptTimes(before_ms=-1, after_ms=0),  # keeps no timestamp
)


def kept_times(configs: Mapping[str, str]) -> KeptTimes:
    """Return which timestamps a topic with these options keeps. An option that is unknown sets no limit."""
    if configs.get("message.timestamp.type") == "LogAppendTime":  # the broker replaces all timestamps, and refuses none
        return KeptTimes(_FOREVER, _FOREVER)
    numbers = {name: int(value) for name, value in configs.items() if value.isdecimal()}
    before = numbers.get("message.timestamp.before.max.ms", _FOREVER)
    after = numbers.get("message.timestamp.after.max.ms", _FOREVER)
    # Kafka before 4 has this limit of both. From 3.6 on, it counts only where the other limits are not set.
    of_both = numbers.get("message.timestamp.difference.max.ms", _FOREVER)
    if before == _FOREVER:
        before = of_both
    if after == _FOREVER:
        after = of_both
    deletes_old_records = "delete" in configs.get("cleanup.policy", "delete")
    if deletes_old_records:
        retention = numbers.get("retention.ms", _FOREVER)  # "-1", which is not decimal, stands for ever
        # A record that would be deleted within five minutes counts as deleted already. If the topic keeps records for
        # less than ten minutes, half of this time takes the place of five minutes.
        soon = min(_DELETED_SOON_MS, retention // 2)
        before = min(before, retention - soon)
    return KeptTimes(before, after)


class RecordTimes:
    """Replaces timestamps in records for one topic, by its rules and its brokers' refusals.

    A caller sends what `sendable` returns. If that is refused, it calls `retry` and starts again; if it is committed,
    it sets `tries` to 0.
    """

    def __init__(self, topic: str, transactions: Transactions, clock: Callable[[], float] = time.time) -> None:
        self._topic = topic
        self._transactions = transactions
        self._clock = clock
        self.tries = 0  # tries of the transaction that have failed
        self._is_logged = False

    def sendable(
        self, records: Sequence[OutgoingFields], timestamps: NDArray[np.int64] | None = None
    ) -> tuple[Sequence[OutgoingFields], int]:
        """Return the records with timestamps that the topic keeps, and how many timestamps were replaced.

        `timestamps` are an optimisation: they include all timestamps of the records. If the topic keeps all of them, no
        record is looked at.
        """
        is_last_try = self.tries == len(_LIMITS_OF_TRIES)
        if is_last_try:
            return [_with_own_time(record) for record in records], 0
        now = int(self._clock() * 1000)
        by_topic = kept_times(self._transactions.topic_configs())
        by_try = _LIMITS_OF_TRIES[self.tries]
        earliest = now - min(by_topic.before_ms, by_try.before_ms)
        latest = now + min(by_topic.after_ms, by_try.after_ms)
        if timestamps is not None:
            keeps_all = earliest <= timestamps.min(initial=now) and timestamps.max(initial=now) <= latest
            if keeps_all:
                return records, 0
        sendable = [_with_kept_time(record, earliest, latest) for record in records]
        replaced = [own[-1] for own, kept in zip(records, sendable, strict=True) if kept is not own]  # timestamps
        if replaced and not self._is_logged:
            log.warning(
                "timestamps replaced", topic=self._topic, header=HEADER, first=min(replaced), last=max(replaced)
            )
            self._is_logged = True
        return sendable, len(replaced)

    def retry(self, error: RecordRefusedError) -> None:
        """Replace more timestamps in the next try. If that cannot help, raise `SourceError`."""
        self.tries += 1
        if error.code not in REFUSED_TIME or self.tries > len(_LIMITS_OF_TRIES):
            raise SourceError(str(error)) from None


def _with_own_time(record: OutgoingFields) -> OutgoingFields:
    """Return a dead letter with the time of its record; another record has its own time already."""
    topic, partition, value, key, headers, timestamp = record
    return topic, partition, value, key, headers, read_own_time(headers) if timestamp < 0 else timestamp


def _with_kept_time(record: OutgoingFields, earliest: int, latest: int) -> OutgoingFields:
    """Return the record itself if its timestamp lies between these times, or is the time of sending.

    Else return it with the time of sending, and its own time in the header.
    """
    topic, partition, value, key, headers, timestamp = record
    if timestamp < 0 or earliest <= timestamp <= latest:
        return record
    others = [header for header in headers if header[0] != HEADER]
    return topic, partition, value, key, [*others, (HEADER, b"%d" % timestamp)], _TIME_OF_SENDING

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
from streampca.sources.broker_errors import INVALID_RECORD_CODES
from streampca.sources.dead_letters import read_own_time

# A header of a record with the time of sending: the record's own time in milliseconds, as decimal text.
OWN_TIME_HEADER = "streampca.timestamp"

_NO_LIMIT_MS = 2**63 - 1
_DELETED_SOON_MS = 5 * 60_000  # brokers look for records to delete every five minutes by default
_TIME_OF_SENDING = -1  # in place of a timestamp, as is any negative number: the client then sets the time

log = structlog.get_logger()


class KeptTimes(NamedTuple):
    """How far before and after now a timestamp may be for a record to be written with it, milliseconds."""

    before_ms: int
    after_ms: int


_ALL_TIMES = KeptTimes(before_ms=_NO_LIMIT_MS, after_ms=_NO_LIMIT_MS)
_LAST_HOUR = KeptTimes(before_ms=3_600_000, after_ms=0)
_NO_TIMES = KeptTimes(before_ms=-1, after_ms=0)  # from 1 ms after now to now: no timestamp lies between them
# Which timestamps each try keeps, if the topic keeps them, too. A last try after these keeps all timestamps.
_KEPT_IN_TRY = (_ALL_TIMES, _LAST_HOUR, _NO_TIMES)


def read_kept_times(configs: Mapping[str, str]) -> KeptTimes:
    """Return which timestamps a topic with these options keeps. An option that is missing sets no limit."""
    if configs.get("message.timestamp.type") == "LogAppendTime":  # the broker replaces all timestamps
        return _ALL_TIMES
    # Before Kafka 4, this limit counts where no other is set.
    both = _read_limit(configs, "message.timestamp.difference.max.ms", _NO_LIMIT_MS)
    before = _read_limit(configs, "message.timestamp.before.max.ms", both)
    after = _read_limit(configs, "message.timestamp.after.max.ms", both)
    deletes_old_records = "delete" in configs.get("cleanup.policy", "delete")
    if deletes_old_records:
        retention = _read_limit(configs, "retention.ms", _NO_LIMIT_MS)
        margin = min(_DELETED_SOON_MS, retention // 2)
        before = min(before, retention - margin)
    return KeptTimes(before_ms=before, after_ms=after)


def _read_limit(configs: Mapping[str, str], name: str, without: int) -> int:
    """Return a limit among the options of a topic; `without` if it is missing, or the topic sets no limit."""
    value = configs.get(name, "")
    has_limit = value.isdecimal() and int(value) < _NO_LIMIT_MS  # -1 also means no limit
    return int(value) if has_limit else without


class TimestampReplacer:
    """Replaces timestamps that a topic does not keep, and more of them in each further try of a transaction.

    A caller sends what `replace` returns. If a broker refuses it, the caller calls `begin_next_try` and starts again.
    When the transaction is committed, it calls `forget_failed_tries`.
    """

    def __init__(self, topic: str, transactions: Transactions, clock: Callable[[], float] = time.time) -> None:
        """`transactions` are asked for the options of the topic; `clock` returns seconds since 1970."""
        self._topic = topic
        self._transactions = transactions
        self._clock = clock
        self._failed_tries = 0  # of the current transaction
        self._is_replacement_logged = False

    def replace(
        self, records: Sequence[OutgoingFields], timestamps: NDArray[np.int64] | None = None
    ) -> tuple[Sequence[OutgoingFields], int]:
        """Return the records to send in this try of a transaction, and how many of their timestamps were replaced.

        `timestamps`, an optimisation, holds at least the timestamps of these records.
        """
        is_last_try = self._failed_tries == len(_KEPT_IN_TRY)
        if is_last_try:
            return [_restore_own_time(record) for record in records], 0
        kept = self._find_kept_times()
        now_ms = int(self._clock() * 1000)
        earliest_ms = now_ms - kept.before_ms
        latest_ms = now_ms + kept.after_ms
        if timestamps is not None:
            is_kept = (earliest_ms <= timestamps) & (timestamps <= latest_ms)
            if is_kept.all():
                return records, 0
        sendable = [_keep_or_replace_time(record, earliest_ms, latest_ms) for record in records]
        replaced = [record for record, to_send in zip(records, sendable, strict=True) if to_send is not record]
        if replaced:
            self._log_first(replaced)
        return sendable, len(replaced)

    def _find_kept_times(self) -> KeptTimes:
        """Return how far before and after now a timestamp may be in this try: further tries allow less.

        Both the topic and the try must allow it.
        """
        of_topic = read_kept_times(self._transactions.topic_configs())
        of_try = _KEPT_IN_TRY[self._failed_tries]
        return KeptTimes(
            before_ms=min(of_topic.before_ms, of_try.before_ms), after_ms=min(of_topic.after_ms, of_try.after_ms)
        )

    def _log_first(self, replaced: Sequence[OutgoingFields]) -> None:
        """Log the first replacement, with the first and the last time of these records."""
        if not self._is_replacement_logged:
            own_times = [timestamp_ms for *_, timestamp_ms in replaced]
            first_ms = min(own_times)
            last_ms = max(own_times)
            log.warning("timestamps replaced", topic=self._topic, header=OWN_TIME_HEADER, first=first_ms, last=last_ms)
            self._is_replacement_logged = True

    def forget_failed_tries(self) -> None:
        """Begin with the first try again, after a transaction was committed."""
        self._failed_tries = 0

    def begin_next_try(self, error: RecordRefusedError) -> None:
        """Replace more timestamps in the next try, after a broker has refused a record.

        Raises `SourceError` if no further try helps.
        """
        self._failed_tries += 1
        is_for_timestamp = error.code in INVALID_RECORD_CODES
        was_last_try = self._failed_tries > len(_KEPT_IN_TRY)
        if not is_for_timestamp or was_last_try:
            raise SourceError(str(error)) from None


def _restore_own_time(record: OutgoingFields) -> OutgoingFields:
    """Return a dead letter with the time of its rejected record, and any other record as it is."""
    topic, partition, value, key, headers, timestamp_ms = record
    has_time_of_sending = timestamp_ms < 0  # only dead letters have it
    own_time_ms = read_own_time(headers) if has_time_of_sending else timestamp_ms
    return topic, partition, value, key, headers, own_time_ms


def _keep_or_replace_time(record: OutgoingFields, earliest_ms: int, latest_ms: int) -> OutgoingFields:
    """Return the record itself if its timestamp lies between these times.

    Otherwise, return a record with the time of sending, and its own time in a header.
    """
    topic, partition, value, key, headers, timestamp_ms = record
    has_time_of_sending = timestamp_ms < 0
    if has_time_of_sending or earliest_ms <= timestamp_ms <= latest_ms:
        return record
    other_headers = [(name, content) for name, content in headers if name != OWN_TIME_HEADER]
    new_headers = [*other_headers, (OWN_TIME_HEADER, b"%d" % timestamp_ms)]
    return topic, partition, value, key, new_headers, _TIME_OF_SENDING

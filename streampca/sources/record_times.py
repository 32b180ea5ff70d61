"""Timestamps of records that are written to a topic: the time of sending replaces those that the topic does not keep.

A topic does not keep a timestamp in two cases. If it is older or further ahead than the topic allows, a broker refuses
the record, and with it all records of the same request. If it is older than the topic's retention, the broker deletes
the record. Such a record is written with the time of sending, and its original timestamp in a header.

The topic's rules may be unknown, or may have changed. If a transaction is refused for a timestamp, it is tried again
with more timestamps replaced. If the time of sending is refused, too, this machine's clock is wrong: in the last try
each record has its original timestamp, and a dead letter the timestamp of its rejected record.
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
from streampca.sources.dead_letters import read_timestamp_of_rejected

# A header of a record that is sent with the time of sending: the original timestamp in milliseconds, as decimal text.
ORIGINAL_TIMESTAMP_HEADER = "streampca.timestamp"

_NO_LIMIT_MS = 2**63 - 1
_DELETED_SOON_MS = 5 * 60_000  # brokers look for records to delete every five minutes by default
_TIME_OF_SENDING = -1  # instead of a timestamp, as any negative number: the client sets the time when it sends

log = structlog.get_logger()


class TimestampLimits(NamedTuple):
    """How far before and after now a timestamp may be, in milliseconds. Any other timestamp is replaced."""

    before_ms: int
    after_ms: int


_ANY_TIMESTAMP = TimestampLimits(before_ms=_NO_LIMIT_MS, after_ms=_NO_LIMIT_MS)
_LAST_HOUR = TimestampLimits(before_ms=3_600_000, after_ms=0)
_NO_TIMESTAMP = TimestampLimits(before_ms=-1, after_ms=0)  # from 1 ms after now to now: no timestamp lies between them
# By the number of failed tries: which timestamps the next try keeps, if the topic's limits allow them, too. After these
# tries, a last try replaces no timestamp.
_TIMESTAMP_LIMITS_BY_TRY = (_ANY_TIMESTAMP, _LAST_HOUR, _NO_TIMESTAMP)


def read_timestamp_limits(configs: Mapping[str, str]) -> TimestampLimits:
    """Return which timestamps a topic with these options keeps. An option that is missing sets no limit."""
    if configs.get("message.timestamp.type") == "LogAppendTime":  # the broker replaces all timestamps
        return _ANY_TIMESTAMP
    # Until Kafka 4, this option is the default of the next two.
    default_limit = _read_limit(configs, "message.timestamp.difference.max.ms", _NO_LIMIT_MS)
    before = _read_limit(configs, "message.timestamp.before.max.ms", default_limit)
    after = _read_limit(configs, "message.timestamp.after.max.ms", default_limit)
    deletes_old_records = "delete" in configs.get("cleanup.policy", "delete")
    if deletes_old_records:  # the broker would soon delete a record with an older timestamp
        retention = _read_limit(configs, "retention.ms", _NO_LIMIT_MS)
        margin = min(_DELETED_SOON_MS, retention // 2)  # with a short retention, keep at least its newer half
        before = min(before, retention - margin)
    return TimestampLimits(before_ms=before, after_ms=after)


def _read_limit(configs: Mapping[str, str], name: str, default: int) -> int:
    """Return a limit among the options of a topic; `default` if it is missing, or the topic sets no limit."""
    value = configs.get(name, "")
    has_limit = value.isdecimal() and int(value) < _NO_LIMIT_MS  # -1 also means no limit
    return int(value) if has_limit else default


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

        After each refusal, the next try replaces more timestamps by the time of sending. If brokers have refused even
        the time of sending, this machine's clock is wrong, and the original timestamps may be right: so the last try
        sends all records with their original timestamps.

        `timestamps`, an optimisation, holds the timestamps of these records, and perhaps of more records. If all are
        kept, no single record is looked at.
        """
        is_last_try = self._failed_tries == len(_TIMESTAMP_LIMITS_BY_TRY)
        if is_last_try:
            return [_restore_timestamp(record) for record in records], 0
        limits = self._find_limits()
        now_ms = int(self._clock() * 1000)
        earliest_ms = now_ms - limits.before_ms
        latest_ms = now_ms + limits.after_ms
        if timestamps is not None:
            is_kept = (earliest_ms <= timestamps) & (timestamps <= latest_ms)
            if is_kept.all():
                return records, 0
        sendable = [_keep_or_replace_timestamp(record, earliest_ms, latest_ms) for record in records]
        # The records whose timestamps were replaced, as they were before.
        originals = [record for record, to_send in zip(records, sendable, strict=True) if to_send is not record]
        if originals:
            self._log_first(originals)
        return sendable, len(originals)

    def _find_limits(self) -> TimestampLimits:
        """Return how far from now a timestamp may be in this try of a transaction.

        The limits of the topic and the limits of the try both apply. After each refusal, the next try has stricter
        limits, since the limits of the topic may be unknown.
        """
        of_topic = read_timestamp_limits(self._transactions.topic_configs())
        of_try = _TIMESTAMP_LIMITS_BY_TRY[self._failed_tries]
        return TimestampLimits(
            before_ms=min(of_topic.before_ms, of_try.before_ms), after_ms=min(of_topic.after_ms, of_try.after_ms)
        )

    def _log_first(self, originals: Sequence[OutgoingFields]) -> None:
        """Log the first replacement, with the first and the last of the original timestamps of these records."""
        if not self._is_replacement_logged:
            timestamps_ms = [timestamp_ms for *_, timestamp_ms in originals]
            first_ms = min(timestamps_ms)
            last_ms = max(timestamps_ms)
            log.warning(
                "timestamps replaced", topic=self._topic, header=ORIGINAL_TIMESTAMP_HEADER, first=first_ms, last=last_ms
            )
            self._is_replacement_logged = True

    def forget_failed_tries(self) -> None:
        """Begin with the first try again, after a transaction was committed."""
        self._failed_tries = 0

    def begin_next_try(self, error: RecordRefusedError) -> None:
        """After a broker has refused a record, begin the next try of the transaction.

        After each refusal, `replace` replaces more timestamps by the time of sending. If brokers have refused even the
        time of sending, this machine's clock is wrong: so the last try sends the original timestamps. Raises
        `SourceError` if another try does not help: a timestamp is not the cause, or the last try has failed.
        """
        self._failed_tries += 1
        is_timestamp_refused = error.code in INVALID_RECORD_CODES
        tries_with_limits = len(_TIMESTAMP_LIMITS_BY_TRY)
        has_last_try_failed = self._failed_tries > tries_with_limits  # the last try has no limits
        if not is_timestamp_refused or has_last_try_failed:
            raise SourceError(str(error)) from None  # the caller handles `error`, which says the same


def _restore_timestamp(record: OutgoingFields) -> OutgoingFields:
    """Return a dead letter with the timestamp of its rejected record, and any other record as it is."""
    topic, partition, value, key, headers, timestamp_ms = record
    gets_time_of_sending = timestamp_ms < 0  # the client sets it
    if not gets_time_of_sending:
        return record
    # A dead letter; or a replay note (see `dead_letters`), which has no original timestamp: it gets -1, so it keeps the
    # time of sending.
    original_ms = read_timestamp_of_rejected(headers)
    return topic, partition, value, key, headers, original_ms


def _keep_or_replace_timestamp(record: OutgoingFields, earliest_ms: int, latest_ms: int) -> OutgoingFields:
    """Return the record itself if its timestamp lies between these times.

    Otherwise, return a record with the time of sending, and the original timestamp in a header.
    """
    topic, partition, value, key, headers, timestamp_ms = record
    gets_time_of_sending = timestamp_ms < 0  # the client sets it
    if gets_time_of_sending or earliest_ms <= timestamp_ms <= latest_ms:
        return record
    other_headers = [(name, content) for name, content in headers if name != ORIGINAL_TIMESTAMP_HEADER]
    new_headers = [*other_headers, (ORIGINAL_TIMESTAMP_HEADER, b"%d" % timestamp_ms)]
    return topic, partition, value, key, new_headers, _TIME_OF_SENDING

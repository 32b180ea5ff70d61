"""The checks of `streampca doctor` for everything that reads the topic: broker, topics, registry, records.

Each returns what it found, or raises what has to be fixed, or `SkippedError` if it depends on one that failed.
"""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import TypeVar

import numpy as np

from streampca.consumer_group.policy import ALL_DELETES, FIRST
from streampca.errors import BadRecordError, OffsetGapError, SourceError
from streampca.formats.codec import Codec
from streampca.formats.epoch import describe_odd_timestamp, find_odd_timestamps
from streampca.formats.record import Decoded
from streampca.settings.commands import ConsumerSettings, WorkerSettings
from streampca.sources import schema_registry
from streampca.sources.base import Admin, Committed, Source
from streampca.sources.client_connection import BrokerErrors, TopicError
from streampca.sources.clients import create_admin, create_client, open_reader
from streampca.sources.topic_reader import TopicReader

_AHEAD_S = 300.0
_STANDS_S = 10.0
_CONNECT_S = 3.0
_TYPED = ("npy", "arrow", "avro", "protobuf")

Check = Callable[[], str]
T = TypeVar("T")


class SkippedError(Exception):
    """An earlier check failed."""


def needed(result: T | None) -> T:
    """The result of an earlier check. Raises `SkippedError` if it failed."""
    if result is None:
        raise SkippedError
    return result


@np.errstate(over="ignore")
def _hint(codec: Codec, decoded: Decoded) -> str:
    """Suggests float32 to a worker whose records carry it, in a format that names the type in each record."""
    are_single = np.array_equal(decoded.vectors, decoded.vectors.astype(np.float32), equal_nan=True)
    is_advised = are_single and codec.format in _TYPED and codec.judge.dtype != "float32"
    return "; its numbers are float32: a worker with dtype=float32 learns them in half the time" if is_advised else ""


def _range(decoded: Decoded) -> str:
    """The least, the median and the greatest number, for a person to judge."""
    numbers = decoded.vectors[np.isfinite(decoded.vectors)]
    if not len(numbers):
        return ""
    least, median, greatest = np.quantile(numbers, [0, 0.5, 1])
    return f"; the newest {len(decoded.vectors)} have numbers from {least:.4g} to {greatest:.4g}, median {median:.4g}"


def _why_unreachable(name: str, host: str, port: int) -> str:
    """Why no connection to a broker can be made at the address that it advertises; "" if one can."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        return f"broker {name} advertises {host}:{port}, which cannot be reached from here ({error.strerror or error})"
    return ""


def require_writable(settings: ConsumerSettings, topic: str) -> int:
    """The number of partitions of a topic. Raises `SourceError` unless it exists and may be written to."""
    with closing(create_admin(settings, topic)) as admin:
        description = admin.require_topic()
    if not description.is_writable:
        raise BrokerErrors(settings, topic).not_authorized(f"writing to topic {topic}")
    return len(description.in_sync)


class TopicChecks:
    """The checks of one topic, and what they have found for others; `opened` closes what they open."""

    def __init__(self, settings: ConsumerSettings, opened: ExitStack) -> None:
        self._settings, self._opened = settings, opened
        self._topic_error: TopicError | None = None
        self.source: Source | None = None
        self._admin: Admin | None = None
        self._reader: TopicReader | None = None
        self.topic_id: str | None = None
        self.bounds: dict[int, tuple[int, int]] | None = None
        """Partition → first offset and end; None: not known."""

    def broker(self) -> str:
        """A broker answers and accepts the login."""
        try:
            self.source = self._opened.enter_context(closing(create_client(self._settings)))
        except TopicError as error:
            self._topic_error = error  # a broker answers: it is the check of the topic that fails
        self._admin = self._opened.enter_context(closing(create_admin(self._settings, self._settings.topic)))
        if unreachable := [text for broker in self._admin.brokers() if (text := _why_unreachable(*broker))]:
            raise SourceError(
                f"{'; '.join(unreachable)}: correct advertised.listeners of the broker, or this machine's names or "
                "routes"
            )
        login = f", logged in as {self._settings.sasl_username}" if self._settings.sasl_username else ""
        return (
            f"{self._settings.bootstrap_servers} answers {self._settings.client} "
            f"({self._settings.security_protocol}{login})"
        )

    def topic(self) -> str:
        if self._topic_error is not None:
            raise self._topic_error
        topic = needed(self._admin).require_topic()
        self.topic_id = topic.id
        if leaderless := [partition for partition, in_sync in topic.in_sync.items() if not in_sync]:
            raise SourceError(
                f"partitions {leaderless} of {self._settings.topic} have no leader: start the brokers that hold them"
            )
        self._reader = self._opened.enter_context(closing(open_reader(self._settings, self._settings.topic)))
        self.bounds = self._reader.bounds()
        count = sum(end - first for first, end in self.bounds.values())
        return (
            f"{self._settings.topic} has {len(self.bounds)} partitions and {count:,} "
            f"records; its id is {self.topic_id or 'unknown, since this broker gives topics none'}"
        )

    def open_transactions(self) -> str:
        """Readers of committed records reach the end of each partition, or come nearer to it."""
        reader, before, began = needed(self._reader), needed(self.bounds), time.monotonic()
        while blocked := {p: end for p, (_, end) in reader.bounds().items() if end < reader.log_ends[p][1]}:
            if any(end != before[p][1] for p, end in blocked.items()):
                return f"partitions {sorted(blocked)} have open ones, which end"
            if time.monotonic() - began > _STANDS_S:
                raise SourceError(
                    f"a transaction is open for {_STANDS_S:.0f} s and more in partitions {sorted(blocked)}: nothing "
                    f"behind offsets {sorted(blocked.values())} can be read until its producer ends it, or the broker "
                    "does after transaction.timeout.ms; kafka-transactions.sh finds and aborts it"
                )
            time.sleep(0.5)
        return "none"

    def dead_letter_topic(self) -> str:
        name = self._settings.dead_letter_topic
        if name is None:
            return f"none; on_bad_record is {self._settings.on_bad_record}"
        needed(self.source)
        require_writable(self._settings, name)
        return f"{name} exists and may be written to"

    def registry(self) -> str:
        """The registry answers if the format of the topic needs one."""
        schemas = schema_registry.create_schemas(self._settings)
        if schemas is None:
            return f"not needed for format {self._settings.format}"
        with suppress(KeyError):  # ids begin with 1, so it is the expected answer
            schemas.get(0)
        return f"{self._settings.schema_registry_url} answers"

    def newest_record(self, codec: Codec, dimensions: int) -> str:
        """The newest record that is no delete holds a vector, and is not in the future; its numbers are plausible."""
        bounds = {p: (first, end) for p, (first, end) in needed(self.bounds).items() if end > first}
        if not bounds:
            return "the topic is empty"
        newest = needed(self._reader).newest_records(bounds, FIRST)
        if not newest:
            return "no record received in time; an open transaction may block them"
        newest.reverse()
        records = [record for _, record in newest]
        wrong_type = codec.explain_wrong_type(codec.sample_untyped(records))
        if wrong_type:
            raise BadRecordError(f"the newest {len(newest)} records are not what was sent: {wrong_type}")
        all_decoded = codec.decode_some(codec.values_to_decode(records))[0]
        deletes = all_decoded.skipped
        if len(deletes) == len(newest):
            text = f"none of the newest {len(newest)} records has a vector: {ALL_DELETES}"
            if len(newest) >= FIRST:
                raise BadRecordError(text)
            return text
        partition, record = next(found for i, found in enumerate(newest) if i not in deletes)
        decoded = codec.decode(codec.values_to_decode([record]))
        where = f"partition {partition}, offset {record.offset}"
        if decoded.rejects:
            raise BadRecordError(f"{where} would be rejected: {decoded.rejects[0].message}; see format and dimensions")
        needs_time = isinstance(self._settings, WorkerSettings) and self._settings.half_life_seconds
        if needs_time and len(find_odd_timestamps(np.array([record.timestamp]))):
            raise BadRecordError(
                f"{where}: half_life_seconds depends on its timestamp {describe_odd_timestamp(record.timestamp)}"
            )
        ahead_s = record.timestamp / 1000 - time.time()
        if ahead_s > _AHEAD_S:
            raise BadRecordError(
                f"{where} is {ahead_s:,.0f} s in the future; compare the clocks of the producer and this machine"
            )
        return (
            f"{where} is a vector of {dimensions} numbers, {max(-ahead_s, 0.0):,.0f} s old"
            f"{_range(all_decoded)}{_hint(codec, decoded)}"
        )

    def progress(self, group: str, committed: Mapping[int, Committed]) -> str:
        bounds = needed(self.bounds)
        behind = sum(end - (committed[p].offset if p in committed else first) for p, (first, end) in bounds.items())
        return f"{group} has offsets of {len(committed)} of {len(bounds)} partitions, {behind:,} behind"

    def refuse_gap(self, partition: int, position: int, what: str, instead: str) -> None:
        """Raise `OffsetGapError` if the log does not hold a position; `what` has it, `instead` is the other remedy."""
        first, end = (self.bounds or {}).get(partition, (0, position))
        if position > end or (position < first and self._settings.on_offset_gap == "fail"):
            raise OffsetGapError(
                f"{what} of partition {partition} resumes at offset {position}, but the log holds {first} to {end}; "
                f"set on_offset_gap, or use another {instead}"
            )

"""The checks of `streampca doctor` that no start does: of addresses, records, open transactions and the registry."""

import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial

import numpy as np

from streampca.cli.member_start import MemberStart
from streampca.consumer_group.policy import ALL_DELETES, FIRST
from streampca.consumer_group.step import Step
from streampca.errors import BadRecordError, SourceError
from streampca.formats.codec import Codec
from streampca.formats.epoch import describe_odd_timestamp, find_odd_timestamps
from streampca.formats.record import Decoded
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import create_admin, open_reader
from streampca.sources.events import OutOfRange
from streampca.sources.topic_reader import TopicReader

_AHEAD_S = 300.0
_STANDS_S = 10.0
_CONNECT_S = 3.0
_TYPED = ("npy", "arrow", "avro", "protobuf")


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


class TopicChecks:
    """The checks of the topic of a start, after its steps; `reader` and `bounds` are what the others look into."""

    reader: TopicReader
    bounds: Mapping[int, tuple[int, int]]
    """Partition → first offset, and end of the committed records."""

    def __init__(self, start: MemberStart) -> None:
        self._start, self._settings = start, start.settings

    def steps(self) -> list[Step]:
        return [
            Step("leaders", self._reach_brokers, after=["topic"]),
            Step("records", self._find_records, after=["leaders"]),
            self.lag_of(self._start),
            Step("open transactions", self._look_for_open_transactions, after=["records"]),
            Step("schema registry", self._ask_registry, after=["format"]),
            Step("newest record", self._read_newest, after=["records", "format"]),
        ]

    def lag_of(self, start: MemberStart) -> Step:
        return Step("lag", partial(self._find_lag, start), after=["records", start.steps()[-1].name])

    def _reach_brokers(self) -> str:
        """Each broker can be reached at the address that it advertises, and each partition has a leader."""
        with closing(create_admin(self._settings, self._settings.topic)) as admin:
            brokers, in_sync = admin.brokers(), admin.require_topic().in_sync
        unreachable = [cause for broker in brokers if (cause := _why_unreachable(*broker))]
        if unreachable:
            raise SourceError(
                f"{'; '.join(unreachable)}: correct advertised.listeners of the broker, or this machine's names or "
                "routes"
            )
        leaderless = [partition for partition, count in in_sync.items() if not count]
        if leaderless:
            raise SourceError(
                f"partitions {leaderless} of {self._settings.topic} have no leader: start the brokers that hold them"
            )
        return f"{len(brokers)} brokers can be reached, and lead all partitions"

    def _find_records(self) -> str:
        reader = open_reader(self._settings, self._settings.topic)
        self.reader = self._start.opened.enter_context(closing(reader))
        self.bounds = reader.bounds()
        count = sum(end - first for first, end in self.bounds.values())
        return f"{self._settings.topic} holds {count:,}"

    def _find_lag(self, start: MemberStart) -> str:
        """The log holds the records that the member of a start reads next."""
        behind = 0
        for partition, (first, end) in self.bounds.items():
            position = start.positions.get(partition, first)
            if not first <= position <= end:
                position = start.policy.resume_at(OutOfRange(partition, position, first, end))
            behind += end - position
        return f"{start.settings.group} is {behind:,} records behind"

    def _look_for_open_transactions(self) -> str:
        """Readers of committed records reach the end of each partition, or come nearer to it."""
        deadline = time.monotonic() + _STANDS_S
        before = blocked = self._blocked()
        while blocked and blocked == before and time.monotonic() < deadline:
            time.sleep(0.5)
            blocked = self._blocked()
        if not blocked:
            return "none"
        if blocked != before:
            return f"partitions {sorted(blocked)} have open ones, which end"
        raise SourceError(
            f"a transaction is open for {_STANDS_S:.0f} s and more in partitions {sorted(blocked)}: nothing behind "
            f"offsets {sorted(blocked.values())} can be read until its producer ends it, or the broker does after "
            "transaction.timeout.ms; kafka-transactions.sh finds and aborts it"
        )

    def _blocked(self) -> dict[int, int]:
        """Partition → where the committed records end, if an open transaction is there."""
        log_ends = self.reader.log_ends
        return {p: end for p, (_, end) in self.reader.bounds().items() if end < log_ends[p][1]}

    def _ask_registry(self) -> str:
        """The registry answers if the format of the topic needs one."""
        schemas = self._start.codec.schemas
        if schemas is None:
            return f"not needed for format {self._settings.format}"
        with suppress(KeyError):  # ids begin with 1, so it is the expected answer
            schemas.get(0)
        return f"{self._settings.schema_registry_url} answers"

    def _read_newest(self) -> str:
        """The newest record that is no delete holds a vector, and is not in the future; its numbers are plausible."""
        codec = self._start.codec
        bounds = {p: (first, end) for p, (first, end) in self.bounds.items() if end > first}
        if not bounds:
            return "the topic is empty"
        newest = self.reader.newest_records(bounds, FIRST)
        if not newest:
            return "no record received in time; an open transaction may block them"
        newest.reverse()
        records = [record for _, record in newest]
        wrong_type = codec.explain_wrong_type(codec.sample_untyped(records))
        if wrong_type:
            raise BadRecordError(f"the newest {len(newest)} records are not what was sent: {wrong_type}")
        decoded, taken = codec.decode_some(codec.values_to_decode(records))
        index = next((i for i in range(taken) if i not in decoded.skipped), None)
        if index is None:
            text = f"none of the newest {len(newest)} records has a vector: {ALL_DELETES}"
            if len(newest) >= FIRST:
                raise BadRecordError(text)
            return text
        partition, record = newest[index]
        where = f"partition {partition}, offset {record.offset}"
        for reject in decoded.rejects:
            if reject.index == index:
                raise BadRecordError(f"{where} would be rejected: {reject.message}; see format and dimensions")
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
            f"{where} is a vector of {codec.judge.dimensions} numbers, {max(-ahead_s, 0.0):,.0f} s old"
            f"{_range(decoded)}{_hint(codec, decoded)}"
        )

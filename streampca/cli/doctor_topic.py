"""The checks of `streampca doctor` that no start does: of addresses, records, open transactions and the registry."""

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial

import numpy as np

from streampca.cli.doctor_options import check_output_keys, compare_largest_record_sizes
from streampca.cli.member_start import MemberStart
from streampca.consumer_group.policy import RECORDS_TO_JUDGE_SETTINGS, explain_all_skipped
from streampca.consumer_group.step import Step
from streampca.errors import BadRecordError, SourceError
from streampca.fold.dominance import describe_dominant_variance
from streampca.formats.codec import Codec
from streampca.formats.epoch import describe_odd_timestamp, find_odd_timestamps
from streampca.formats.record import Decoded, Record
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.settings.field_paths import dimension_names
from streampca.sources.clients import create_admin, open_reader, read_configs
from streampca.sources.events import OutOfRange
from streampca.sources.topic_options import is_compacted
from streampca.sources.topic_reader import TopicReader

_MAX_CLOCK_DIFFERENCE_S = 300.0  # between this machine and a producer
_OPEN_TRANSACTION_S = 10.0  # a transaction that stays open for so long is reported
_CONNECT_TIMEOUT_S = 3.0
_FORMATS_WITH_TYPES = ("npy", "arrow", "avro", "protobuf")  # each record names the type of its numbers


def _warn_of_unseen_names(codec: Codec, decoded: Decoded) -> str:
    """Return a warning that names the dimensions at which no vector of the newest records has a number; else ""."""
    seen_names = codec.create_seen_names()
    seen_names.add_from(decoded.vectors)
    return seen_names.describe_unseen("the newest records")


@np.errstate(over="ignore", invalid="ignore")  # the variance of very large numbers is infinite
def _warn_of_dominant_variance(codec: Codec, decoded: Decoded) -> str:
    """Return a warning if one dimension has nearly all of the variance of the vectors; "" if no dimension has."""
    observed = np.ma.masked_invalid(decoded.vectors.astype(np.float64))  # missing entries are NaN
    variances = observed.var(axis=0).filled(0.0)
    names = dimension_names(codec.field, codec.judge.dimensions)
    return describe_dominant_variance(variances, float(variances.sum()), len(decoded.vectors), names)


@np.errstate(over="ignore")  # a number that is too large for float32 becomes infinite, so it is not equal
def _suggest_float32(codec: Codec, decoded: Decoded) -> str:
    """If records carry float32 and a worker would learn them as float64, return a hint to change that; else ""."""
    # Records of other formats do not say the type of their numbers.
    if codec.format not in _FORMATS_WITH_TYPES:
        return ""
    dtype_of_learning = codec.judge.dtype  # the judge checks vectors, and converts them to this type
    if dtype_of_learning == "float32":
        return ""
    as_float32 = decoded.vectors.astype(np.float32)
    if not np.array_equal(decoded.vectors, as_float32, equal_nan=True):
        return ""
    return "; its numbers are float32: a worker with dtype=float32 learns them in half the time"


def _refuse_wrong_type(codec: Codec, records: Sequence[Record]) -> None:
    """Raise `BadRecordError` if numbers of a raw format, which do not name their type, look like another type."""
    samples = codec.sample_untyped(records)
    wrong_type = codec.explain_wrong_type(samples)
    if wrong_type:
        raise BadRecordError(f"the newest {len(records)} records are not what was sent: {wrong_type}")


def _describe_range(decoded: Decoded) -> str:
    """Return the least, the median and the greatest number of the vectors; "" if they have no numbers."""
    numbers = decoded.vectors[np.isfinite(decoded.vectors)]
    if not len(numbers):
        return ""
    least, median, greatest = np.quantile(numbers, [0, 0.5, 1])
    return f"; the newest {len(decoded.vectors)} have numbers from {least:.4g} to {greatest:.4g}, median {median:.4g}"


def _explain_unreachable(name: str, host: str, port: int) -> str:
    """If a broker cannot be reached at the address that it advertises, say why; else return ""."""
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"broker {name} advertises {host}:{port}, which cannot be reached from here ({error.strerror or error})"
    return ""


def _refuse_odd_timestamp(record: Record, where: str) -> None:
    """Raise `BadRecordError` if the timestamp of a record is before 1990 or after 2100."""
    odd_timestamps = find_odd_timestamps(np.array([record.timestamp]))
    if len(odd_timestamps) > 0:
        raise BadRecordError(
            f"{where}: half_life_seconds depends on its timestamp {describe_odd_timestamp(record.timestamp)}"
        )


class TopicChecks:
    """The checks of a topic that no start does.

    Each check is a step: it returns what it found, in a sentence for people, or raises an error. The checks follow the
    steps of `start`, and use what these steps have found.
    """

    reader: TopicReader  # set by `_find_records`, like `bounds`
    bounds: Mapping[int, tuple[int, int]]
    """Partition → its first offset, and the offset after its last committed record."""

    def __init__(self, start: MemberStart) -> None:
        self._start = start
        self._settings = start.settings

    def steps(self) -> list[Step]:
        """Return the checks in their order.

        `after` names the steps whose results a check uses: other checks, or steps of the member's start, such as
        "topic" and "format".
        """
        return [
            Step("leaders", self._check_brokers, after=["topic"]),
            Step("records", self._find_records, after=["leaders"]),
            *self.list_member_steps(self._start),  # the lag of the member, and the keys of its outputs
            Step(
                "size of dead letters",
                partial(compare_largest_record_sizes, self._settings),
                after=["topic", "dead-letter topic"],
            ),
            Step("open transactions", self._look_for_open_transactions, after=["records"]),
            Step("schema registry", self._ask_registry, after=["format"]),
            Step("newest record", self._check_newest_record, after=["records", "format"]),
        ]

    def list_member_steps(self, start: MemberStart) -> list[Step]:
        """Return the checks of one member: how many records it is behind, and whether its output topic needs keys."""
        # Both checks use the results of earlier steps, which `after` names. The last step of a start finds the member's
        # positions, from which the lag is counted.
        position_step = start.steps()[-1]
        steps = [Step("lag", partial(self._count_lag, start), after=["records", position_step.name])]
        if isinstance(start.settings, TransformSettings):
            check = partial(self._check_output_keys, start.settings)
            steps.append(Step("keys of outputs", check, after=["records", "output topic"]))
        return steps

    def _check_brokers(self) -> str:
        """Check that each broker can be reached at the address that it advertises, and each partition has a leader."""
        with closing(create_admin(self._settings, self._settings.topic)) as admin:
            brokers = admin.brokers()
            in_sync_replicas = admin.require_topic().in_sync
        causes = [_explain_unreachable(*broker) for broker in brokers]
        unreachable_brokers = "; ".join(filter(None, causes))
        if unreachable_brokers:
            raise SourceError(
                f"{unreachable_brokers}: correct advertised.listeners of the broker, or this machine's names or routes"
            )
        leaderless = [partition for partition, replica_count in in_sync_replicas.items() if replica_count == 0]
        if leaderless:
            raise SourceError(
                f"partitions {leaderless} of {self._settings.topic} have no leader: start the brokers that hold them"
            )
        return f"brokers that can be reached: {len(brokers)}; all partitions have a leader"

    def _find_records(self) -> str:
        """Find the first offset and the end of each partition. Returns how many records the topic holds at most.

        Compaction and transactions leave offsets without a record.
        """
        reader = open_reader(self._settings, self._settings.topic)
        self.reader = self._start.opened.enter_context(closing(reader))
        self.bounds = reader.find_bounds()
        max_count = sum(end - first for first, end in self.bounds.values())
        configs = read_configs(self._settings, self._settings.topic)
        finding = f"{self._settings.topic} holds at most {max_count:,} records"
        if is_compacted(configs):
            finding += "; it is compacted, so audit may not find all that was learned"
        return finding

    def _check_output_keys(self, settings: TransformSettings) -> str:
        """Check that outputs have keys if their topic is compacted."""
        bounds = self._find_bounds_with_records()
        newest = self.reader.read_newest(bounds, 1) if bounds else []  # one record of each partition
        return check_output_keys(settings, newest)

    def _find_bounds_with_records(self) -> dict[int, tuple[int, int]]:
        """Return `bounds` without the empty partitions."""
        return {partition: (first, end) for partition, (first, end) in self.bounds.items() if end > first}

    def _count_lag(self, start: MemberStart) -> str:
        """Return in a sentence how many records a member has not read yet.

        Raises `OffsetGapError` if the member would not resume.
        """
        lag = 0
        for partition, (first, end) in self.bounds.items():
            position = start.positions.get(partition, first)
            is_out_of_range = not first <= position <= end
            if is_out_of_range:  # the setting on_offset_gap decides where the member resumes
                position = start.config.choose_resume_offset(OutOfRange(partition, position, first, end))
            lag += end - position
        return f"{start.settings.group} is {lag:,} records behind"

    def _look_for_open_transactions(self) -> str:
        """Check that no transaction stays open for long, because committed records behind it cannot be read."""
        deadline = time.monotonic() + _OPEN_TRANSACTION_S
        # Partition → the offset at which its open transaction begins. When the transaction ends, this offset changes.
        first_open_offsets = self._find_open_transactions()
        open_offsets = first_open_offsets
        while open_offsets and open_offsets == first_open_offsets and time.monotonic() < deadline:
            time.sleep(0.5)
            open_offsets = self._find_open_transactions()
        if not open_offsets:
            return "none"
        if open_offsets != first_open_offsets:  # at least one transaction has ended, so producers are at work
            return f"partitions {sorted(open_offsets)} have open transactions, which end in time"
        raise SourceError(
            f"a transaction is open for {_OPEN_TRANSACTION_S:.0f} s and more in partitions {sorted(open_offsets)}: "
            f"nothing behind offsets {sorted(open_offsets.values())} can be read until its producer ends it, or the "
            "broker does after transaction.timeout.ms; kafka-transactions.sh finds and aborts it"
        )

    def _find_open_transactions(self) -> dict[int, int]:
        """Return where a transaction is open that was open when the reader was opened: an offset for each partition.

        The committed records end where the first open transaction begins. If this end is still before the end of the
        log at the opening of the reader, a transaction from before the opening is still open. A later transaction does
        not count, since it is probably just running.
        """
        offsets = {}
        committed_bounds = self.reader.find_bounds()
        log_bounds_at_opening = self.reader.log_bounds  # these include the records of open transactions
        for partition, (_first, committed_end) in committed_bounds.items():
            _earliest, end_at_opening = log_bounds_at_opening[partition]
            if committed_end < end_at_opening:
                offsets[partition] = committed_end
        return offsets

    def _ask_registry(self) -> str:
        """Check that the schema registry answers, if the format of the topic needs one."""
        schemas = self._start.codec.schemas
        if schemas is None:
            return f"not needed for format {self._settings.format}"
        with suppress(KeyError):  # the registry answers that there is no schema 0: its ids begin with 1
            schemas.get(0)
        return f"{self._settings.schema_registry_url} answers"

    def _check_newest_record(self) -> str:
        """Check that the newest records have plausible numbers, and that the newest vector can be used."""
        bounds = self._find_bounds_with_records()
        if not bounds:
            return "the topic is empty"
        newest = self.reader.read_newest(bounds, count=RECORDS_TO_JUDGE_SETTINGS)
        if not newest:
            return "no record received in time; an open transaction may block them"
        newest.reverse()  # now the newest comes first
        return self._check_records(newest)

    def _check_records(self, newest: Sequence[tuple[int, Record]]) -> str:
        """Check the newest records; the newest comes first. Returns what was found.

        The newest record that a worker would not skip must be a vector.
        """
        codec = self._start.codec
        records = [record for _partition, record in newest]
        _refuse_wrong_type(codec, records)
        values = codec.values_to_decode(records)
        decoded, decoded_count = codec.decode_some(values)  # fewer than all if they are large
        # A worker skips deletes and records that do not meet `where`. They are not in `decoded.rejects`.
        skipped_indices = {skipped.index for skipped in decoded.skipped}
        not_skipped = [index for index in range(decoded_count) if index not in skipped_indices]
        if not not_skipped:
            reason_of_newest = decoded.skipped[0].reason
            return self._report_all_skipped(reason_of_newest, decoded_count)
        newest_index = not_skipped[0]
        partition, record = newest[newest_index]
        where = f"partition {partition}, offset {record.offset}"
        for reject in decoded.rejects:
            if reject.index == newest_index:
                raise BadRecordError(f"{where} would be rejected: {reject.message}; see format and dimensions")
        finding = f"{where} is a vector of {codec.judge.dimensions} numbers, {self._check_age(record, where)}"
        return finding + self._describe_vectors(codec, decoded)

    def _check_age(self, record: Record, where: str) -> str:
        """Return how many seconds old a record is.

        Raises `BadRecordError` if the record is in the future. If the half-life is a time, also raises it if the
        timestamp is before 1990 or after 2100.
        """
        if isinstance(self._settings, WorkerSettings) and self._settings.half_life_seconds:
            _refuse_odd_timestamp(record, where)
        age_s = time.time() - record.timestamp / 1000
        if age_s < -_MAX_CLOCK_DIFFERENCE_S:
            raise BadRecordError(
                f"{where} is {-age_s:,.0f} s in the future; compare the clocks of the producer and this machine"
            )
        return f"{max(age_s, 0.0):,.0f} s old"

    def _describe_vectors(self, codec: Codec, decoded: Decoded) -> str:
        """Return the range of the numbers, and what may be wrong with the vectors, as the end of a sentence."""
        warnings = [_warn_of_unseen_names(codec, decoded)]
        if isinstance(self._settings, WorkerSettings) and not self._settings.standardize:
            warnings.append(_warn_of_dominant_variance(codec, decoded))
        warnings.append(decoded.warning)
        about_warnings = "".join(f"; warning: {warning}" for warning in warnings if warning)
        return _describe_range(decoded) + _suggest_float32(codec, decoded) + about_warnings

    def _report_all_skipped(self, reason: str, count: int) -> str:
        """Return a sentence that none of the newest `count` records holds a vector.

        Raises `BadRecordError` if there are so many that a setting is probably wrong.
        """
        finding = f"none of the newest {count} records has a vector: {explain_all_skipped(reason)}"
        if count >= RECORDS_TO_JUDGE_SETTINGS:
            raise BadRecordError(finding)
        return finding

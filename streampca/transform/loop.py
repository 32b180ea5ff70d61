"""The loop of `streampca transform`: it writes outputs and offsets in transactions until it is stopped.

A partition is read from the offset that the group has committed. The member asks for that offset at every assignment,
and after every transaction that was not committed: only the brokers know which transactions were.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace

import structlog

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import Notify
from streampca.consumer_group.first_records import FirstRecords
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.member_loop import MemberLoop
from streampca.consumer_group.policy import MemberPolicy, report_rejected_and_skipped
from streampca.errors import BadRecordError, TopicReplacedError, refuse_other_topic
from streampca.formats.record import Reject
from streampca.process import watchdog
from streampca.sources.base import RecordRefusedError, Source, TransactionFailedError, Transactions
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Vectors
from streampca.sources.record_times import TimestampReplacer
from streampca.transform.output_limit import OutputLimit
from streampca.transform.outputs import Outputs, TransformedBatch
from streampca.transform.position import Position
from streampca.transform.starts import StartFinder, require_output_partitions

_POLL_S = 0.1
CHECK_TOPIC_S = 1.0  # a topic may be deleted and created again without an error of either client
TRANSACTION_S = 0.1  # longer: readers of committed records wait; shorter: each transaction costs some milliseconds
TRANSACTION_RECORDS = 10_000

log = structlog.get_logger()


class TransformConfig(MemberPolicy):
    """The topic of a member of transform, and how it treats bad and lost records."""

    suspect_settings = "format, field"
    settings_to_start_over = "another output_topic and transform_group_id"


class Transformer(MemberLoop):
    """A member of the consumer group, which transforms the partitions that are assigned to it."""

    def __init__(
        self,
        config: TransformConfig,
        source: Source,
        in_flight: InFlight[TransformedBatch],
        transactions: Transactions,
        outputs: Outputs,
        start_finder: StartFinder,
        notify: Notify,
    ) -> None:
        """`transactions` must commit offsets as the member of the group that `source` has joined."""
        super().__init__(source, in_flight, notify, seen_names=outputs.codec.create_seen_names())
        self._config = config
        self._transactions = transactions
        self._outputs = outputs
        self._start_finder = start_finder
        self._model = outputs.model
        self._output_limit = OutputLimit()
        self._timestamps = TimestampReplacer(outputs.topic, transactions)
        # By partition: up to this position, records are sent again, because brokers refused their transaction.
        self._resend_until: dict[int, int] = {}
        first_records = FirstRecords(config.topic, outputs.codec)
        self._assignment = Assignment[Position](config, source, in_flight, self._restore, notify, first_records)
        self._positions = self._assignment.progress  # of the partitions that this member has restored and still owns
        # Whether this member, or one before it, has accepted a vector. If so, many rejects do not stop the member.
        self._has_accepted_vector = False
        # By partition: the position that the open transaction commits, which is after its last record, or the start of
        # a new partition. Empty if no transaction is open.
        self._positions_to_commit: dict[int, Position] = {}
        self._counts = Counter[str]()  # of the open transaction's records, by outcome; "all": of all its records
        self._transaction_began_at = 0.0  # of the open transaction; monotonic seconds
        self._next_topic_check_at = 0.0

    def _leave(self) -> None:
        """Abort the open transaction, and leave the group. The next owners read its records again."""
        try:
            self._transactions.close()
        finally:
            self._source.close()

    def _turn(self, clock: Callable[[], float]) -> None:
        """Handle the next events, and commit the open transaction when it is due.

        If the transaction fails, read all partitions again from the committed offsets.
        """
        try:
            self._model.refresh()
            if not self._positions_to_commit:  # no transaction is open: the next events may open one now
                self._transaction_began_at = clock()
            self._handle_events_or_stop()
            self._commit_when_due(clock)
            self._assignment.retry_when_due(clock())
        except RecordRefusedError as error:
            self._adapt_to_refusal(error)
            self._start_over("aborted", str(error))
        except TransactionFailedError as error:
            self._start_over("failed", str(error))

    def _commit_when_due(self, clock: Callable[[], float]) -> None:
        """Commit the open transaction, if there is one, once it is old or large enough."""
        is_old = clock() - self._transaction_began_at >= TRANSACTION_S
        is_large = self._counts["all"] >= TRANSACTION_RECORDS
        is_open = len(self._positions_to_commit) > 0
        is_due = is_open and (is_old or is_large)
        if not is_due:
            return
        if clock() >= self._next_topic_check_at:
            self._require_same_topic()  # a new topic must not get the offsets of a deleted one
            self._next_topic_check_at = clock() + CHECK_TOPIC_S
        self._commit()

    def _handle_events_or_stop(self) -> None:
        """Poll and handle events. If a bad record stops the member, commit the records before it."""
        try:
            self._handle_events(_POLL_S)
        except BadRecordError:
            self._commit()
            raise

    def _adapt_to_refusal(self, error: RecordRefusedError) -> None:
        """Change how records are sent, so that brokers do not refuse the same record again."""
        is_too_large = error.size > 0  # the size is 0 unless the record is too large
        if is_too_large:
            self._output_limit = self._output_limit.after_refusal(error.size)
        else:
            # Each further try replaces more timestamps by the time of sending. If brokers refuse even this time, our
            # clock is wrong, so a last try replaces no timestamp. Raises if no further try can help.
            self._timestamps.begin_next_try(error)
        # Brokers do not say which record they refused, so all records of the transaction are sent in the changed way.
        for partition, reached in self._positions_to_commit.items():
            self._resend_until[partition] = reached.position

    def _handle(self, event: Event) -> None:
        """Handle one event of the source."""
        match event:
            case Records() | OutOfRange() if event.partition not in self._positions:
                pass  # a late event: this member has released the partition since the poll
            case Records():
                self._assignment.decode(event, self._project)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._release(partitions, lost=False)
            case Lost(partitions):
                self._release(partitions, lost=True)
            case OutOfRange():
                self._in_flight.finish(event.partition)  # writes the records of lower offsets first
                self._require_same_topic()  # raises if this is a new topic of the same name, which has lost nothing
                self._assignment.skip_lost_records(event)

    def _project(self, batch: Vectors) -> None:
        """Project a batch in a thread; the loop then writes its outputs."""
        self._name_check.add(batch)  # for a warning if a name in the setting `field` never has a number
        # The loop may replace these attributes before the thread projects.
        model = self._model.published
        limit = self._output_limit
        outputs = self._outputs

        def project(_result_before: TransformedBatch | None) -> TransformedBatch:
            # The result of the partition's batch before is unused: batches do not depend on each other.
            return outputs.project(model, limit, batch)

        self._in_flight.submit_work(batch, function=project, handle=self._write)

    def _write(self, transformed: TransformedBatch) -> None:
        """Add the outputs and dead letters of a batch to the transaction, and report the batch."""
        batch = transformed.batch
        # If all first records are rejected, a setting is wrong: `find_dead_letters` raises, and nothing is sent.
        rejects = self._config.find_dead_letters(batch, accepted_before=self._has_accepted_vector)
        has_vectors = len(batch.timestamps) > 0  # one timestamp for each record that holds vectors
        if has_vectors:
            self._has_accepted_vector = True
        self._move_position(transformed)
        replaced_timestamps = self._send(transformed, rejects)
        self._counts.update(
            all=transformed.input_record_count,  # every record of the batch
            # Records with vectors, rejected records and deletes. A record with an empty list of vectors is left out.
            read=batch.count,
            written=transformed.output_record_count,
            rejected=len(batch.decoded.rejects),
            skipped=len(batch.decoded.skipped),
            replaced=replaced_timestamps,
        )
        self._report_batch(transformed)

    def _move_position(self, transformed: TransformedBatch) -> None:
        """Move the position of a partition behind a batch. The open transaction will commit this position."""
        batch = transformed.batch
        partition = batch.partition
        # A batch without records only moves the position behind markers of transactions. The last record before the
        # position then stays the same.
        has_records = transformed.input_record_count > 0
        last_record = transformed.last if has_records else self._positions[partition].last
        position = Position(batch.next, last=last_record)
        self._positions[partition] = position
        self._positions_to_commit[partition] = position

    def _report_batch(self, transformed: TransformedBatch) -> None:
        """Report a batch, and the records in it that were rejected or skipped."""
        batch = transformed.batch
        for event in report_rejected_and_skipped(batch, accepted_any=self._has_accepted_vector):
            self._notify(event)
        self._notify(
            events.BatchTransformed(
                batch.partition,
                messages=len(batch.timestamps),  # number of records that hold vectors: each has one timestamp
                outputs=transformed.output_record_count,
                version=transformed.version,
                lag=batch.end - batch.next,
                next=batch.next,
            )
        )

    def _send(self, transformed: TransformedBatch, rejects: Sequence[Reject]) -> int:
        """Send outputs and dead letters; return how many timestamps of outputs were replaced."""
        batch = transformed.batch
        # If the topic would refuse an output for its timestamp, or soon delete the output, the time of sending replaces
        # this timestamp. Each output has a timestamp of the batch. So `replace` first tests the batch's timestamps as
        # one array: if all may stay, it need not test each output.
        outputs, replaced_timestamps = self._timestamps.replace(transformed.outputs, batch.timestamps)
        self._transactions.send(outputs)
        if rejects:
            dead_letters = [
                self._outputs.make_dead_letter(batch.partition, batch.records[reject.index], reject)
                for reject in rejects
            ]
            dead_letters_to_send, _ = self._timestamps.replace(dead_letters)  # only replacements in outputs are counted
            self._transactions.send(dead_letters_to_send)
        return replaced_timestamps

    def _commit(self) -> None:
        """Commit the open transaction, with the position behind its records in each partition."""
        started = time.perf_counter()
        # Somebody may have changed the size limit of the output topic, so it is refreshed in each transaction.
        self._output_limit = self._output_limit.with_options(self._transactions.topic_configs())
        # The next member reads the shape and the topic id with the offsets. It refuses to continue if its model has
        # other numbers of components and dimensions, or if the topic is another one of the same name.
        shape = self._model.shape
        topic_id = self._outputs.source_topic_id
        offsets = {p: position.as_committed(shape, topic_id) for p, position in self._positions_to_commit.items()}
        self._transactions.commit(offsets)
        self._end_resending_if_all_committed()  # matters only after brokers have refused records
        self._report_end("committed", seconds=time.perf_counter() - started)

    def _end_resending_if_all_committed(self) -> None:
        """If all records of refused transactions are committed, replace no more timestamps than before the refusal.

        After brokers have refused a transaction, its records are sent again with more of their timestamps replaced.
        """
        for partition, resend_until in list(self._resend_until.items()):
            reached = self._positions.get(partition)  # None: released, so another member commits the records
            if reached is None or reached.position >= resend_until:
                del self._resend_until[partition]
        if not self._resend_until:
            self._timestamps.forget_failed_tries()

    def _require_same_topic(self) -> None:
        """If the topic was deleted and created again, abort the transaction and raise `TransactionFailedError`.

        Do the same if the brokers do not answer.
        """
        try:
            refuse_other_topic(
                self._config.topic,
                before=self._outputs.source_topic_id,
                now=self._source.topic_id(),
                where="while it was being read",
                remedy="its records are read again",
            )
        except (TimeoutError, TopicReplacedError) as error:
            self._transactions.abort()
            raise TransactionFailedError(str(error)) from None

    def _start_over(self, outcome: str, cause: str) -> None:
        """Read all partitions again from the committed offsets."""
        self._report_end(outcome, cause)
        self._assignment.restart()

    def _report_end(self, outcome: str, cause: str = "", seconds: float = 0.0) -> None:
        """Report the end of the open transaction, if there is one, and forget its records."""
        if self._positions_to_commit:
            self._notify(events.TransactionEnded(outcome, self._counts, seconds, cause))
        self._positions_to_commit = {}
        self._counts = Counter()

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Release partitions, and abort the open transaction, since it may hold records of them."""
        self._transactions.abort()
        self._report_end("aborted", "partitions lost" if lost else "partitions revoked")
        self._assignment.release(partitions, lost=lost)  # also removes them from `_positions`
        keeps_partitions = len(self._positions) > 0
        if keeps_partitions:
            # The aborted transaction may also hold records of the kept partitions: read them again.
            self._assignment.restart()

    def _raise_if_stopping(self) -> None:
        """Raise `TimeoutError` if the member is to stop; otherwise tell the watchdog that it makes progress."""
        watchdog.tick()
        if self._stop_cause is not None:
            raise TimeoutError("the member stops")

    def _restore(self, partitions: Collection[int]) -> Generator[Mapping[int, Position], None, None]:
        """Yield the positions at which partitions continue. Partitions that the output topic lacks are left out.

        This is a generator, since `Assignment` can take partitions one after another. But it yields only once, since
        all positions are found together.

        Raises `TimeoutError` if a retry can help. Each step may take long, so between steps, `TimeoutError` is also
        raised if the member is to stop.
        """
        self._raise_if_stopping()
        self._transactions.recover()  # ends the transaction of an earlier process, so that its offsets are final
        # Somebody may have changed the size limit of the output topic.
        self._output_limit = self._output_limit.with_options(self._transactions.topic_configs())
        self._raise_if_stopping()
        writable = self._find_writable(partitions)
        self._raise_if_stopping()
        has_earlier_partitions = len(self._positions) > 0
        if has_earlier_partitions:
            self._require_same_topic()  # in a new topic of this name, the positions would mean other records
        else:
            # The topic may be a new one of the same name, which the settings do not fit. So, as after a start, the
            # member ends if all records are rejected before it has accepted a vector.
            self._has_accepted_vector = False
        yield self._find_starts(writable)

    def _find_starts(self, partitions: Collection[int]) -> dict[int, Position]:
        """Return the positions at which partitions continue; starts that are not committed join the open transaction.

        From now on, outputs carry the id of the source topic.
        """
        starts = self._start_finder.find(partitions)
        # A member that has accepted no vector stops if many records are rejected: its settings may be wrong. An offset
        # above 0 shows that an earlier member has accepted vectors; 0 may be committed before any record is read.
        has_earlier_member = any(committed.offset > 0 for committed in starts.committed.values())
        if has_earlier_member:
            self._has_accepted_vector = True
        self._outputs = replace(self._outputs, source_topic_id=starts.topic_id)
        self._add_starts_to_transaction(starts.uncommitted)
        return starts.by_partition(partitions)

    def _add_starts_to_transaction(self, starts: Mapping[int, Position]) -> None:
        """Commit the starts of new partitions with the open transaction, so that no later member must find them again.

        `starts` has the first position by partition.
        """
        for partition, start in starts.items():
            if start.position >= 0:  # -1 means the earliest record, whose offset is not known yet
                self._positions_to_commit[partition] = start
        transform_start = self._start_finder.transform_start  # the setting that has decided the starts; None: not set
        if starts and transform_start is not None:
            log.info("partitions begun", transform_start=transform_start, partitions=sorted(starts))

    def _find_writable(self, partitions: Collection[int]) -> list[int]:
        """Return the partitions that the output topic has, too. Raises `TimeoutError` if there are none."""
        output_topic = self._outputs.topic
        count = self._transactions.partitions(output_topic)
        writable = [partition for partition in partitions if partition < count]
        if not writable:  # raises
            require_output_partitions(output_topic, count, self._config.topic, partitions)
        return writable

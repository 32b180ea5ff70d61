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
        super().__init__(source, in_flight, notify, seen_names=outputs.codec.seen_names)
        self._config = config
        self._transactions = transactions
        self._outputs = outputs  # each restore of partitions replaces the id of the input topic in it
        self._start_finder = start_finder
        self._model = outputs.model
        self._output_limit = OutputLimit()
        self._timestamps = TimestampReplacer(outputs.topic, transactions)
        # By partition: the position behind the records that must be sent again, since the brokers refused one of them.
        self._refused_up_to: dict[int, int] = {}
        first_records = FirstRecords(config.topic, outputs.codec)
        self._assignment = Assignment[Position](config, source, in_flight, self._restore, notify, first_records)
        self._positions = self._assignment.progress
        self._has_accepted_vector = False  # the group has committed a record, or this member has projected a vector
        # The open transaction.
        self._uncommitted: dict[int, Position] = {}  # by partition, the position after its records
        self._counts = Counter[str]()  # how many of its records were written, rejected, …; "all": of all its records
        self._transaction_began_at = 0.0  # monotonic seconds
        # Monotonic seconds. The input topic may have been deleted and created again since the last check.
        self._next_topic_check_at = 0.0

    def _leave(self) -> None:
        """Abort the open transaction, and leave the group. The next owners read its records again."""
        try:
            self._transactions.close()
        finally:
            self._source.close()

    def _turn(self, clock: Callable[[], float]) -> None:
        """Handle the next events, and commit the open transaction when it is due.

        If the transaction fails, read all partitions again from the committed offsets. If a broker has refused a record
        of it, first change how records are sent: otherwise it would be refused again.
        """
        try:
            self._model.refresh()
            if not self._uncommitted:  # no transaction is open: the events of this turn may open one
                self._transaction_began_at = clock()
            self._handle_events_or_stop()
            record_count = self._counts["all"]  # all records of the open transaction, whatever became of them
            is_due = clock() - self._transaction_began_at >= TRANSACTION_S or record_count >= TRANSACTION_RECORDS
            if self._uncommitted and is_due:
                if clock() >= self._next_topic_check_at:
                    self._abort_if_topic_replaced()  # a deleted topic's offsets must not be committed for a new one
                    self._next_topic_check_at = clock() + CHECK_TOPIC_S
                self._commit()
            self._assignment.retry_when_due(clock())
        except RecordRefusedError as error:
            # From now on, outputs must be smaller, or the time of sending replaces more timestamps.
            self._prepare_retry(error)
            self._start_over("aborted", str(error))
        except TransactionFailedError as error:  # for another cause: the same records may be sent again as they are
            self._start_over("failed", str(error))

    def _handle_events_or_stop(self) -> None:
        """Poll and handle events. If a bad record stops the member, commit the records before it."""
        try:
            self._handle_events(_POLL_S)
        except BadRecordError:
            self._commit()
            raise

    def _prepare_retry(self, error: RecordRefusedError) -> None:
        """Change how records are sent, so that the next transaction is not refused for the same record.

        If the record was too large, the limit of outputs is lowered for good. If its timestamp was refused, more
        timestamps are replaced, until `_end_retry_if_committed` ends this.
        """
        is_too_large = error.size > 0  # otherwise, the timestamp of the record was refused
        if is_too_large:
            self._output_limit = self._output_limit.after_refusal(error.size)
        else:
            self._timestamps.begin_next_try(error)
        # Which record was refused is not known. So the retry ends when all records of this transaction are committed.
        for partition, position in self._uncommitted.items():
            self._refused_up_to[partition] = position.position

    def _handle(self, event: Event) -> None:
        """Handle one event of the source."""
        match event:
            case Records() | OutOfRange() if event.partition not in self._positions:
                pass  # polled before the partition was released
            case Records():
                self._assignment.decode(event, self._project)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._release(partitions, lost=False)
            case Lost(partitions):
                self._release(partitions, lost=True)
            case OutOfRange():
                self._in_flight.finish(event.partition)  # write the records that were read before the lost ones
                # Raises if the topic was deleted and created again: all records are read again, and none is skipped.
                self._abort_if_topic_replaced()
                self._assignment.skip_lost_records(event)

    def _project(self, batch: Vectors) -> None:
        """Project a batch in a thread; the loop then writes its outputs."""
        # Notes at which names in `field` the batch has numbers: the loop warns about names at which no record has one.
        self._first_names.add(batch)
        # The thread must not read these three attributes, since the loop may replace them before the thread projects.
        model = self._model.published
        limit = self._output_limit
        outputs = self._outputs

        # `work` passes the result of the partition's last batch, with which a worker continues. Transform ignores it.
        def project(_last_result: TransformedBatch | None) -> TransformedBatch:
            return outputs.project(model, limit, batch)

        self._in_flight.work(batch.partition, nbytes=batch.nbytes, function=project, handle=self._write)

    def _write(self, transformed: TransformedBatch) -> None:
        """Add the outputs and dead letters of a batch to the transaction, and report the batch."""
        batch = transformed.batch
        partition = batch.partition
        # Raises if no vector was accepted before, and this batch begins with 100 rejected records: then a setting is
        # wrong. This comes first, since nothing may be sent then.
        rejects = self._config.find_dead_letters(batch, accepted_any=self._has_accepted_vector)
        message_count = len(batch.timestamps)  # records that hold vectors; some of them may get no output
        if message_count:
            self._has_accepted_vector = True
        # A batch without records moves the position over offsets that hold only markers of transactions, for example.
        # The last record before the position stays the same then.
        has_records = transformed.record_count > 0
        last_record = transformed.last if has_records else self._positions[partition].last
        position = Position(batch.next, last=last_record)
        self._positions[partition] = position
        self._uncommitted[partition] = position
        replaced = self._send(transformed, rejects)
        # Now a vector of this batch counts as accepted, too.
        for event in report_rejected_and_skipped(batch, accepted_any=self._has_accepted_vector):
            self._notify(event)
        self._counts.update(
            all=transformed.record_count,  # every record of the batch
            read=batch.count,  # without the records whose value is an empty list of vectors
            written=transformed.written,
            rejected=len(batch.decoded.rejects),
            skipped=len(batch.decoded.skipped),
            replaced=replaced,
        )
        self._notify(
            events.BatchTransformed(
                partition,
                messages=message_count,
                outputs=transformed.written,
                version=transformed.version,
                lag=batch.end - batch.next,
                next=batch.next,
            )
        )

    def _send(self, transformed: TransformedBatch, rejects: Sequence[Reject]) -> int:
        """Send outputs and the dead letters of `rejects`; return how many timestamps of outputs were replaced."""
        batch = transformed.batch
        # The time of sending replaces timestamps that the topic would refuse or soon delete. Outputs have timestamps of
        # the batch: if none of these must be replaced, `replace` need not look at the outputs.
        outputs, replaced = self._timestamps.replace(transformed.outputs, batch.timestamps)
        self._transactions.send(outputs)
        if rejects:
            dead_letters = [
                self._outputs.make_dead_letter(batch.partition, batch.records[reject.index], reject)
                for reject in rejects
            ]
            # Dead letters have the time of sending already. Only the last of several tries gives them another time.
            sendable_letters, _ = self._timestamps.replace(dead_letters)
            self._transactions.send(sendable_letters)
        return replaced

    def _commit(self) -> None:
        """Commit the open transaction, with the position behind its records in each partition."""
        started = time.perf_counter()
        # For the next transaction: somebody may have changed the largest size of a record in the output topic.
        self._output_limit = self._output_limit.with_options(self._transactions.topic_configs())
        shape = self._model.shape  # numbers of components and dimensions: a later member must write the same
        topic_id = self._outputs.source_topic_id
        # The metadata of an offset name shape and topic id: the next member refuses to continue with another one.
        offsets = {p: position.as_committed(shape, topic_id) for p, position in self._uncommitted.items()}
        self._transactions.commit(offsets)
        self._end_retry_if_committed()  # this may have been a retry of a transaction that brokers refused
        self._report_end("committed", seconds=time.perf_counter() - started)

    def _end_retry_if_committed(self) -> None:
        """Once all records of refused transactions are committed, return to the rule of the first try.

        In the first try, only timestamps that the topic forbids are replaced. After a broker has refused a timestamp,
        each further try replaces more of the timestamps, until all records of the refused transaction are committed. A
        partition that was released is another member's, so this member no longer waits for its records.
        """
        for partition, end in list(self._refused_up_to.items()):  # `end` is behind the last refused record
            is_ours = partition in self._positions
            is_committed = is_ours and self._positions[partition].position >= end
            if is_committed or not is_ours:
                del self._refused_up_to[partition]
        if not self._refused_up_to:
            self._timestamps.forget_failed_tries()  # the next transaction is a first try

    def _abort_if_topic_replaced(self) -> None:
        """If the topic was replaced, abort the transaction and raise `TransactionFailedError`.

        Our positions mean other records in the new topic. If the brokers do not answer, the same error is raised.
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
        if self._uncommitted:
            self._notify(events.TransactionEnded(outcome, self._counts, seconds, cause))
        self._uncommitted = {}
        self._counts = Counter()

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Release partitions, and abort the open transaction, since it may hold records of them."""
        self._transactions.abort()
        self._report_end("aborted", "partitions lost" if lost else "partitions revoked")
        self._assignment.release(partitions, lost=lost)
        if self._positions:  # partitions stay, whose records in the aborted transaction must be read again
            self._assignment.restart()

    def _raise_if_stopping(self) -> None:
        """Raise `TimeoutError` if the member is to stop; otherwise tell the watchdog that it makes progress."""
        watchdog.tick()
        if self._stop_cause is not None:
            raise TimeoutError("the member stops")

    def _restore(self, partitions: Collection[int]) -> Generator[Mapping[int, Position], None, None]:
        """Yield the positions at which partitions continue. Partitions that the output topic lacks are left out.

        All positions come in one item; the type is a generator since `Assignment` also takes partitions one by one.
        Raises `TimeoutError` if a retry can help. The requests may take long, so it is also raised between two of them
        if the member is to stop.
        """
        self._raise_if_stopping()
        self._transactions.recover()  # ends a transaction that has failed, or that an earlier process has left open
        self._output_limit = self._output_limit.with_options(self._transactions.topic_configs())
        self._raise_if_stopping()
        writable = self._find_writable(partitions)
        self._raise_if_stopping()
        # For example, some partitions are read already while these ones wait for more partitions of the output topic.
        is_reading_others = bool(self._positions)
        if is_reading_others:
            self._abort_if_topic_replaced()  # otherwise, positions of the old topic would be committed for the new one
        else:  # this may be a new topic of the same name: many rejected records before its first vector stop the member
            self._has_accepted_vector = False
        yield self._find_starts(writable)

    def _find_starts(self, partitions: Collection[int]) -> dict[int, Position]:
        """Return the positions at which partitions continue, and note the id of their topic for outputs.

        If partitions have no committed offset, the next transaction commits where they begin, so that a later member
        need not find this again.
        """
        starts = self._start_finder.find(partitions)
        # An earlier member has handled records with these settings. So rejected records do not show that a setting is
        # wrong, and many in a row do not stop this member.
        if any(committed.offset > 0 for committed in starts.committed.values()):
            self._has_accepted_vector = True
        self._outputs = replace(self._outputs, source_topic_id=starts.topic_id)
        for partition, start in starts.uncommitted.items():
            if start.position >= 0:  # -1, the earliest record, cannot be committed
                self._uncommitted[partition] = start  # the next transaction commits it
        transform_start = self._start_finder.transform_start
        if starts.uncommitted and transform_start is not None:
            log.info("partitions begun", transform_start=transform_start, partitions=sorted(starts.uncommitted))
        return starts.positions(partitions)

    def _find_writable(self, partitions: Collection[int]) -> list[int]:
        """Return the partitions whose outputs can be written: the output topic has a partition of the same number.

        Raises `TimeoutError` if there is none.
        """
        output_topic = self._outputs.topic
        count = self._transactions.partitions(output_topic)
        writable = [partition for partition in partitions if partition < count]
        if not writable:
            require_output_partitions(output_topic, count, self._config.topic, partitions)
        return writable

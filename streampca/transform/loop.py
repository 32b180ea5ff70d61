"""The loop of `streampca transform`: write outputs and offsets in one transaction after the other, until stopped.

A partition is read from the offset that the group has committed. It is read again, at every assignment and after every
transaction that failed: nobody else knows which transactions were committed.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import Listener
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.member_loop import MemberLoop
from streampca.consumer_group.policy import FirstRecords, MemberPolicy, report_without_vectors
from streampca.errors import TopicReplacedError, refuse_other_topic
from streampca.process import watchdog
from streampca.sources.base import Committed, RecordRefusedError, Source, TransactionFailedError, Transactions
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Vectors
from streampca.sources.record_times import RecordTimes
from streampca.transform.outputs import OutputLimit, Outputs, TransformedBatch, refuse_too_few
from streampca.transform.position import Position, position_in, refuse_other_outputs

_POLL_S = 0.1
CHECK_TOPIC_S = 1.0  # a topic may be deleted and created again without an error of either client
TRANSACTION_S = 0.1  # delays readers of committed records; each transaction costs some milliseconds
TRANSACTION_RECORDS = 10_000


class TransformConfig(MemberPolicy):
    """Topic of one member, and how it treats bad records and gaps."""

    suspects = "format, field"
    start_over = "another output_topic and transform_group_id"


class Transformer(MemberLoop):
    """A member of the consumer group, which transforms the partitions that are assigned to it."""

    def __init__(
        self,
        config: TransformConfig,
        source: Source,
        in_flight: InFlight[TransformedBatch],
        transactions: Transactions,
        outputs: Outputs,
        listener: Listener,
    ) -> None:
        """The `transactions` belong to the member that reads the `source`."""
        super().__init__(source, in_flight, listener)
        self._config = config
        self._transactions = transactions
        self._outputs = outputs
        self._model, self._limit = outputs.model, OutputLimit()
        self._times = RecordTimes(outputs.topic, transactions)
        self._refused: dict[int, int] = {}  # partition → where the transactions ended that were refused
        first_records = FirstRecords(config.topic, outputs.codec)
        self._assignment = Assignment[Position](config, source, in_flight, self._restore, listener, first_records)
        self._positions = self._assignment.progress
        self._is_first_start = True  # the group has committed no record, and this member has projected none
        self._topic_id = ""  # at the last assignment, or failure
        self._pending: dict[int, Position] = {}  # of the open transaction
        self._counts, self._begun_at = Counter[str](), 0.0
        self._next_check = 0.0

    def _leave(self) -> None:
        """Abort an open transaction, whose records are read again, and leave the group."""
        try:
            self._transactions.close()
        finally:
            self._source.close()

    def _turn(self, clock: Callable[[], float]) -> None:
        try:
            self._model.refresh()
            if not self._pending:
                self._begun_at = clock()
            self._handle_events(_POLL_S)
            is_due = clock() - self._begun_at >= TRANSACTION_S or self._counts["all"] >= TRANSACTION_RECORDS
            if self._pending and is_due:
                if clock() >= self._next_check:
                    self._check_topic()
                    self._next_check = clock() + CHECK_TOPIC_S
                self._commit()
        except RecordRefusedError as error:
            if error.size:
                self._limit = self._limit.after_refusal(error.size)
            else:
                self._times.retry(error)
            self._refused |= {p: at.position for p, at in self._pending.items()}
            self._start_over("aborted", str(error))
        except TransactionFailedError as error:  # the rest of the events is read again
            self._start_over("failed", str(error))
        self._assignment.retry_when_due(clock())

    def _handle(self, event: Event) -> None:
        match event:
            case Records() | OutOfRange() if event.partition not in self._positions:
                pass  # read before the partition was released
            case Records():
                self._assignment.decode(event, self._project, before_stop=self._commit)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._release(partitions, lost=False)
            case Lost(partitions):
                self._release(partitions, lost=True)
            case OutOfRange():
                self._in_flight.finish(event.partition)  # records that are in flight are not lost
                self._check_topic()
                self._assignment.skip_lost_records(event)

    def _project(self, batch: Vectors) -> None:
        """Project a batch in a thread."""
        model, limit = self._model.published, self._limit

        def project(_earlier: TransformedBatch | None) -> TransformedBatch:
            return self._outputs.project(model, limit, batch)

        self._in_flight.work(batch.partition, batch.nbytes, project, self._write)

    def _write(self, transformed: TransformedBatch) -> None:
        """Add the outputs and dead letters of a batch to the transaction."""
        batch, partition = transformed.batch, transformed.batch.partition
        dead_letters = [
            self._outputs.dead_letter(partition, batch.records[reject.index], reject)
            for reject in self._config.find_dead_letters(batch, accepted_any=not self._is_first_start)
        ]
        read, lag = len(batch.timestamps), batch.end - batch.next
        self._is_first_start &= not read
        last = transformed.last if transformed.records else self._positions[partition].last
        self._positions[partition] = self._pending[partition] = Position(batch.next, last)
        outputs, replaced = self._times.sendable(transformed.outputs, batch.timestamps)
        self._transactions.send(outputs)
        if dead_letters:
            letters, _ = self._times.sendable(dead_letters)
            self._transactions.send(letters)
        for without_vector in report_without_vectors(batch, accepted_any=not self._is_first_start):
            self._listener.notify(without_vector)
        self._counts.update(
            all=transformed.records, read=batch.count, written=transformed.written,
            rejected=len(batch.decoded.rejects), skipped=len(batch.decoded.skipped), replaced=replaced,
        )  # fmt: skip
        self._listener.notify(
            events.BatchTransformed(partition, read, transformed.written, transformed.version, lag, batch.next)
        )

    def _commit(self) -> None:
        started = time.perf_counter()
        self._limit = self._limit.configured(self._transactions.topic_configs())
        shape, topic_id = self._model.shape, self._topic_id
        self._transactions.commit({p: position.as_committed(shape, topic_id) for p, position in self._pending.items()})
        self._refused = {
            p: end for p, end in self._refused.items() if p in self._positions and self._positions[p].position < end
        }
        if not self._refused:
            self._times.tries = 0
        self._end("committed", seconds=time.perf_counter() - started)

    def _check_topic(self) -> None:
        """Raise if the topic is not the one that was assigned: then its records are not those at our positions."""
        try:
            refuse_other_topic(
                self._config.topic,
                self._topic_id,
                self._source.topic_id(),
                "while it was being read",
                "its records are read again",
            )
        except (TimeoutError, TopicReplacedError) as error:
            self._transactions.abort()
            raise TransactionFailedError(str(error)) from None

    def _start_over(self, outcome: str, cause: str) -> None:
        """Read all partitions again from what is committed."""
        self._end(outcome, cause)
        self._assignment.restart()

    def _end(self, outcome: str, cause: str = "", seconds: float = 0.0) -> None:
        """Forget the open transaction."""
        if self._pending:
            self._listener.notify(events.TransactionEnded(outcome, self._counts, seconds, cause))
        self._pending, self._counts = {}, Counter()

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Abort the open transaction, since it may hold records of these partitions."""
        self._transactions.abort()
        self._end("aborted", "partitions lost" if lost else "partitions revoked")
        self._assignment.release(partitions, lost=lost)
        if self._positions:  # the others' records of that transaction
            self._assignment.restart()

    def _check_stop(self) -> None:
        watchdog.tick()
        if self._stop_cause is not None:
            raise TimeoutError("the member stops")

    def _restore(self, partitions: Collection[int]) -> Mapping[int, Position]:
        """Where to read partitions from. Raises `TimeoutError`, also if the member is to stop: each step takes time."""
        self._check_stop()
        self._transactions.recover()
        self._limit = self._limit.configured(self._transactions.topic_configs())
        self._check_stop()
        count = self._transactions.partitions(self._outputs.topic)
        refuse_too_few(self._outputs.topic, count, self._config.topic, partitions)
        self._check_stop()
        committed: Mapping[int, Committed] = self._source.committed(self._source.partitions())
        self._is_first_start = not any(position.offset > 0 for position in committed.values())
        self._topic_id = self._source.topic_id()
        refuse_other_outputs(self._config.topic, self._topic_id, committed, self._model.require_shape)
        return {p: position_in(committed[p]) if p in committed else Position(-1) for p in partitions}

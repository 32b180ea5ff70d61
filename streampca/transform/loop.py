"""The loop of `streampca transform`: it writes outputs and offsets in transactions until it is stopped.

A partition is read from the offset that the group has committed. The member asks for that offset at every assignment,
and after every transaction that was not committed: only the brokers know which transactions were.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from streampca.consumer_group import events
from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import Listener
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.member_loop import MemberLoop
from streampca.consumer_group.policy import FirstRecords, MemberPolicy, report_rejected_and_skipped
from streampca.errors import TopicReplacedError, refuse_other_topic
from streampca.process import watchdog
from streampca.sources.base import Committed, RecordRefusedError, Source, TransactionFailedError, Transactions
from streampca.sources.events import Assigned, Event, Lost, OutOfRange, Records, Revoked, Vectors
from streampca.sources.record_times import RecordTimes
from streampca.transform.outputs import OutputLimit, Outputs, TransformedBatch, refuse_too_few
from streampca.transform.position import Position, read_position, refuse_other_outputs

_POLL_S = 0.1
CHECK_TOPIC_S = 1.0  # a topic may be deleted and created again without an error of either client
TRANSACTION_S = 0.1  # longer: readers of committed records wait; shorter: each transaction costs some milliseconds
TRANSACTION_RECORDS = 10_000


class TransformConfig(MemberPolicy):
    """The topic of a member of transform, and how it treats bad and lost records."""

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
        self._model = outputs.model
        self._limit = OutputLimit()
        self._times = RecordTimes(outputs.topic, transactions)
        self._refused_up_to: dict[int, int] = {}  # partition → where it ended in the last refused transaction
        first_records = FirstRecords(config.topic, outputs.codec)
        self._assignment = Assignment[Position](config, source, in_flight, self._restore, listener, first_records)
        self._positions = self._assignment.progress
        self._is_first_start = True  # the group has committed no record, and this member has projected none
        self._topic_id = ""  # as of the last restore; empty: not known, or the brokers give topics no ids
        # Of the open transaction: the positions after its records, the numbers of its records, and when it began.
        self._uncommitted: dict[int, Position] = {}
        self._counts = Counter[str]()
        self._begun_at = 0.0
        self._next_check = 0.0

    def _leave(self) -> None:
        """Abort the open transaction, and leave the group. The next owners read its records again."""
        try:
            self._transactions.close()
        finally:
            self._source.close()

    def _turn(self, clock: Callable[[], float]) -> None:
        try:
            self._model.refresh()
            if not self._uncommitted:
                self._begun_at = clock()
            self._handle_events(_POLL_S)
            is_due = clock() - self._begun_at >= TRANSACTION_S or self._counts["all"] >= TRANSACTION_RECORDS
            if self._uncommitted and is_due:
                if clock() >= self._next_check:
                    self._check_topic()
                    self._next_check = clock() + CHECK_TOPIC_S
                self._commit()
        except RecordRefusedError as error:
            if error.size:
                self._limit = self._limit.after_refusal(error.size)
            else:
                self._times.retry(error)
            self._refused_up_to |= {p: reached.position for p, reached in self._uncommitted.items()}
            self._start_over("aborted", str(error))
        except TransactionFailedError as error:  # events that were polled and not handled are read again, too
            self._start_over("failed", str(error))
        self._assignment.retry_when_due(clock())

    def _handle(self, event: Event) -> None:
        match event:
            case Records() | OutOfRange() if event.partition not in self._positions:
                pass  # polled before the partition was released
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
        model = self._model.published
        limit = self._limit

        # `work` passes the result of the partition's earlier batch, on which an output does not depend.
        def project(_earlier: TransformedBatch | None) -> TransformedBatch:
            return self._outputs.project(model, limit, batch)

        self._in_flight.work(batch.partition, batch.nbytes, project, self._write)

    def _write(self, transformed: TransformedBatch) -> None:
        """Add the outputs and dead letters of a batch to the transaction."""
        batch = transformed.batch
        partition = batch.partition
        dead_letters = [
            self._outputs.make_dead_letter(partition, batch.records[reject.index], reject)
            for reject in self._config.find_dead_letters(batch, accepted_any=not self._is_first_start)
        ]
        messages = len(batch.timestamps)
        if messages:
            self._is_first_start = False
        last = transformed.last if transformed.records else self._positions[partition].last
        position = Position(batch.next, last)
        self._positions[partition] = position
        self._uncommitted[partition] = position
        outputs, replaced = self._times.sendable(transformed.outputs, batch.timestamps)
        self._transactions.send(outputs)
        if dead_letters:
            letters, _ = self._times.sendable(dead_letters)
            self._transactions.send(letters)
        for event in report_rejected_and_skipped(batch, accepted_any=not self._is_first_start):
            self._listener.notify(event)
        self._counts.update(
            all=transformed.records, read=batch.count, written=transformed.written,
            rejected=len(batch.decoded.rejects), skipped=len(batch.decoded.skipped), replaced=replaced,
        )  # fmt: skip
        self._listener.notify(
            events.BatchTransformed(
                partition,
                messages=messages,
                outputs=transformed.written,
                version=transformed.version,
                lag=batch.end - batch.next,
                next=batch.next,
            )
        )

    def _commit(self) -> None:
        started = time.perf_counter()
        self._limit = self._limit.with_options(self._transactions.topic_configs())
        shape = self._model.shape
        offsets = {p: reached.as_committed(shape, self._topic_id) for p, reached in self._uncommitted.items()}
        self._transactions.commit(offsets)
        self._refused_up_to = {
            p: end
            for p, end in self._refused_up_to.items()
            if p in self._positions and self._positions[p].position < end
        }
        if not self._refused_up_to:  # all that was refused is committed now
            self._times.tries = 0
        self._end("committed", seconds=time.perf_counter() - started)

    def _check_topic(self) -> None:
        """If the topic was replaced, abort the transaction and raise: our positions mean other records there."""
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
        """Read all partitions again from the committed offsets."""
        self._end(outcome, cause)
        self._assignment.restart()

    def _end(self, outcome: str, cause: str = "", seconds: float = 0.0) -> None:
        """Report the end of the open transaction, and forget it."""
        if self._uncommitted:
            self._listener.notify(events.TransactionEnded(outcome, self._counts, seconds, cause))
        self._uncommitted = {}
        self._counts = Counter()

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Release partitions, and abort the open transaction, since it may hold records of them."""
        self._transactions.abort()
        self._end("aborted", "partitions lost" if lost else "partitions revoked")
        self._assignment.release(partitions, lost=lost)
        if self._positions:  # the transaction may hold records of the partitions that stay, too
            self._assignment.restart()

    def _check_stop(self) -> None:
        watchdog.tick()
        if self._stop_cause is not None:
            raise TimeoutError("the member stops")

    def _restore(self, partitions: Collection[int]) -> Mapping[int, Position]:
        """Return the positions at which partitions continue.

        Raises `TimeoutError` if a retry can help, or if the member is to stop, since each request may take long.
        """
        self._check_stop()
        self._transactions.recover()
        self._limit = self._limit.with_options(self._transactions.topic_configs())
        self._check_stop()
        count = self._transactions.partitions(self._outputs.topic)
        refuse_too_few(self._outputs.topic, count, self._config.topic, partitions)
        self._check_stop()
        committed: Mapping[int, Committed] = self._source.committed(self._source.partitions())
        self._is_first_start = not any(position.offset > 0 for position in committed.values())
        self._topic_id = self._source.topic_id()
        refuse_other_outputs(self._config.topic, self._topic_id, committed, self._model.require_shape)
        return {p: read_position(committed[p]) if p in committed else Position(-1) for p in partitions}

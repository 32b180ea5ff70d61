"""The loop of `streampca transform`: write outputs and offsets in one transaction after the other, until stopped.

A partition is read from the offset that the group has committed. It is read again, at every assignment and after every
transaction that failed: nobody else knows which transactions were committed.

The metadata of a committed offset are such as `k=2 d=784 topic=5fJx41ZNQ6u3sVYq2mTq0g last=41@3`: the shape of the
outputs, the id of the topic, and the offset and the leader epoch of the last record. Tools that set offsets write none.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from streampca.consumer_group.listener import BatchTransformed, Listener, TransactionEnded
from streampca.consumer_group.member import Member, MemberConfig
from streampca.errors import TopicReplacedError
from streampca.fold.events import Event, OutOfRange, Undecoded, Vectors
from streampca.fold.record import LastRecord
from streampca.process import watchdog
from streampca.sources.base import Committed, Source, TransactionFailedError, Transactions
from streampca.transform.outputs import Outputs, TransformedBatch

_POLL_S = 0.1
CHECK_TOPIC_S = 1.0  # a topic may be deleted and created again without an error of either client
TRANSACTION_S = 0.1  # readers of committed records wait so long; each transaction costs some milliseconds
TRANSACTION_RECORDS = 10_000
_TOPIC = re.compile(r"\btopic=([\w-]+)")
_LAST = re.compile(r"\blast=([0-9]+)@([0-9]+)")


class Position(NamedTuple):
    """Where a partition is read."""

    position: int  # the next offset; -1: the earliest
    last: LastRecord | None = None  # before the position; None: its leader epoch is unknown

    def skip(self, position: int, lost_from: int) -> "Position":
        return Position(position)

    def as_committed(self, shape: str, topic_id: str) -> Committed:
        """The offset to commit, and its metadata."""
        topic = f" topic={topic_id}" if topic_id else ""
        last = f" last={self.last.offset}@{self.last.leader_epoch}" if self.last else ""
        return Committed(self.position, f"{shape}{topic}{last}")


def position_in(committed: Committed) -> Position:
    """Where to resume."""
    match = _LAST.search(committed.metadata)
    last = LastRecord(int(match[1]), int(match[2])) if match else None
    # A tool may have set an earlier offset and kept the metadata.
    return Position(committed.offset, last if last and last.offset < committed.offset else None)


def refuse_other_topic(topic: str, partition: int, committed: Committed, topic_id: str) -> None:
    """Raise `TopicReplacedError` if the offset is of another topic of the same name."""
    match = _TOPIC.search(committed.metadata)
    if match and topic_id and match[1] != topic_id:
        raise TopicReplacedError(
            f"topic {topic} was deleted and created again (its id is {topic_id}, the committed offset of partition "
            f"{partition} is of {match[1]}); write to another output_topic with another transform_group_id"
        )


class Transformer(Member[Position]):
    """A member of the consumer group, which transforms the partitions that are assigned to it.

    When stopped, it aborts the open transaction, whose records the next owner reads again.
    """

    start_over, decoding_settings = "another output_topic and transform_group_id", "format, field"

    def __init__(
        self,
        config: MemberConfig,
        source: Source,
        transactions: Transactions,
        outputs: Outputs,
        listener: Listener,
        check_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """The `source` hands over records that `outputs` has projected; `transactions` are those of the same member."""
        super().__init__(config, source, listener, check_threads)
        self._transactions, self._outputs, self._model = transactions, outputs, outputs.model
        self._positions = self._assignment.progress
        self._is_first_start = True  # the group has committed no record, and this member has projected none
        self._topic_id = ""  # at the last assignment, or failure
        self._pending: dict[int, Position] = {}  # of the open transaction
        self._counts, self._begun_at = Counter[str](), 0.0
        self._next_check = 0.0

    def _turn(self, clock: Callable[[], float]) -> None:
        try:
            self._model.refresh()
            for event in self._source.poll(_POLL_S):
                watchdog.tick()
                if not self._pending:
                    self._begun_at = clock()
                self._handle(event)
            is_due = clock() - self._begun_at >= TRANSACTION_S or self._counts["all"] >= TRANSACTION_RECORDS
            if self._pending and is_due:
                if clock() >= self._next_check:
                    self._check_topic()
                    self._next_check = clock() + CHECK_TOPIC_S
                self._commit()
        except TransactionFailedError as error:  # the rest of the events is read again, too
            self._start_over(str(error))
        self._assignment.retry_when_due(clock())

    def _shut_down(self) -> None:
        try:
            self._transactions.close()
        finally:
            self._source.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Vectors | Undecoded | OutOfRange) and event.partition not in self._positions:
            return  # read before the partition was released
        super()._handle(event)

    def _has_accepted(self) -> bool:
        return not self._is_first_start

    def _take(self, event: TransformedBatch) -> BatchTransformed:  # type: ignore[override]  # there are no others
        rejects, partition = event.decoded.rejects, event.partition
        self._is_first_start &= event.count == len(rejects)
        self._transactions.send(event.outputs)
        if rejects and self._bad_records == "dead_letter":
            sent = [self._outputs.dead_letter(partition, event.records[reject.index], reject) for reject in rejects]
            self._transactions.send(sent)
        last = event.last if len(event.records) else self._positions[partition].last
        self._positions[partition] = self._pending[partition] = Position(event.next, last)
        self._counts.update(all=len(event.records), read=event.count, written=event.written, rejected=len(rejects))
        read, lag = event.count - len(rejects), event.end - event.next
        return BatchTransformed(partition, read, event.written, event.version, lag, event.next)

    def _process_before(self, event: Vectors, index: int) -> None:
        self._process(self._outputs.project(event.before(index)))
        self._commit()

    def _skip_gap(self, event: OutOfRange) -> None:
        self._check_topic()
        self._assignment.skip_gap(event)

    def _commit(self) -> None:
        started = time.perf_counter()
        shape, topic_id = self._model.shape, self._topic_id
        self._transactions.commit({p: position.as_committed(shape, topic_id) for p, position in self._pending.items()})
        self._end("committed", seconds=time.perf_counter() - started)

    def _check_topic(self) -> None:
        """Raise if the topic is not the one that was assigned: then its records are not those at our positions."""
        try:
            now = self._source.topic_id()
            cause = "the topic was deleted and created again" if now and self._topic_id not in ("", now) else ""
        except TimeoutError as error:
            cause = str(error)
        if cause:
            self._transactions.abort()
            raise TransactionFailedError(cause)

    def _start_over(self, cause: str) -> None:
        """Read all partitions again from what is committed."""
        self._end("failed", cause)
        self._assignment.restart()

    def _end(self, outcome: str, cause: str = "", seconds: float = 0.0) -> None:
        """Forget the open transaction."""
        if self._pending:
            self._listener.notify(TransactionEnded(outcome, self._counts, seconds, cause))
        self._pending, self._counts = {}, Counter()

    def _release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Abort the open transaction, since it may hold records of these partitions."""
        self._transactions.abort()
        self._end("aborted", "partitions lost" if lost else "partitions revoked")
        self._assignment.release(partitions, lost=lost)
        if self._positions:  # the others' records of that transaction
            self._start_over("")

    def _check_stop(self) -> None:
        watchdog.tick()
        if self._stop_cause is not None:
            raise TimeoutError("the member stops")

    def _restore(self, partitions: Collection[int]) -> Mapping[int, Position]:
        """Where to read partitions from. Raises `TimeoutError`, also if the member is to stop: each step takes time."""
        self._check_stop()
        self._transactions.recover()
        self._check_stop()
        self._outputs.check_partitions(partitions, self._transactions)
        self._check_stop()
        committed = self._source.committed(self._source.partitions())
        self._is_first_start = not any(position.offset > 0 for position in committed.values())
        self._topic_id = self._source.topic_id()
        for partition, position in committed.items():
            self._model.require_shape(position.metadata)
            refuse_other_topic(self._topic, partition, position, self._topic_id)
        return {p: position_in(committed[p]) if p in committed else Position(-1) for p in partitions}

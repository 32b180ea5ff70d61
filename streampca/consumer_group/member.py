"""A member of a consumer group: the loop of worker and transform, and how it treats what its source returns."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic

from streampca.consumer_group import listener as events
from streampca.consumer_group.assignment import Assignment, OffsetGapPolicy, P
from streampca.consumer_group.listener import Listener
from streampca.errors import BadRecordError, RejectLimitError, StreampcaError
from streampca.fold.events import Assigned, Event, Lost, OutOfRange, Revoked, Undecoded, Vectors
from streampca.process import watchdog
from streampca.sources.base import Source

_FIRST = 100  # records: if all of them fail, a setting is wrong


@dataclass(frozen=True)
class MemberConfig:
    """The topic of a member, and how it treats bad records and gaps."""

    topic: str
    bad_records: str = "stop"  # stop, skip, or dead_letter
    offset_gap: str = "fail"  # fail, earliest or latest


class Member(ABC, Generic[P]):
    """Processes the records of the partitions that are assigned to it; one thread makes every decision."""

    start_over: str  # with these settings, for errors
    decoding_settings: str  # that may be wrong if no record can be decoded, for errors

    def __init__(
        self,
        config: MemberConfig,
        source: Source,
        listener: Listener,
        check_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_threads` raises the error of a thread that has died, which ends the loop."""
        self._source, self._listener, self._check_threads = source, listener, check_threads
        self._topic, self._bad_records = config.topic, config.bad_records
        gaps = OffsetGapPolicy(config.topic, config.offset_gap, self.start_over)
        self._assignment: Assignment[P] = Assignment(gaps, source, self._restore, listener)
        self._stop_cause: str | None = None

    def stop(self, cause: str) -> None:
        """End the loop after the current batch. Safe to call from a signal handler."""
        self._stop_cause = self._stop_cause or cause

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Work until stopped, then leave the group. Raises `StreampcaError` for errors that restarting cannot fix."""
        try:
            self._begin(clock)
            while self._stop_cause is None:
                self._check_threads()
                watchdog.tick()
                self._listener.notify(events.LoopTicked())
                self._turn(clock)
                self._listener.notify(events.SourcePolled(self._source.status()))
        except StreampcaError as error:
            self.stop(str(error))
            raise
        finally:
            self._listener.notify(events.MemberStopping(self._stop_cause or "crashed"))
            self._shut_down()

    def _begin(self, clock: Callable[[], float]) -> None:
        """Check what can be checked before the group is joined."""

    @abstractmethod
    def _turn(self, clock: Callable[[], float]) -> None:
        """Poll once, and do what is due."""

    @abstractmethod
    def _take(self, event: Vectors) -> events.BatchLearned | events.BatchTransformed:
        """Learn or write records, and send rejected ones to the dead-letter topic if there is one."""

    @abstractmethod
    def _has_accepted(self) -> bool:
        """True if any record was accepted before; if not, the settings may be wrong."""

    @abstractmethod
    def _restore(self, partitions: Collection[int]) -> Mapping[int, P]: ...
    @abstractmethod
    def _release(self, partitions: Collection[int], *, lost: bool) -> None: ...
    @abstractmethod
    def _skip_gap(self, event: OutOfRange) -> None: ...
    @abstractmethod
    def _shut_down(self) -> None: ...

    def _handle(self, event: Event) -> None:
        match event:
            case Vectors():
                self._assignment.decoded(event.partition)
                self._process(event)
            case Undecoded():
                self._assignment.pause(event)
            case Assigned(partitions):
                self._assignment.assign(partitions)
            case Revoked(partitions):
                self._release(partitions, lost=False)
            case Lost(partitions):
                self._release(partitions, lost=True)
            case OutOfRange():
                self._skip_gap(event)

    def _process(self, event: Vectors) -> None:
        """Take records, and report them. Raises `BadRecordError` or `RejectLimitError`."""
        rejects = event.decoded.rejects
        if rejects and self._bad_records == "stop":
            first = rejects[0]
            self._process_before(event, first.index)
            raise BadRecordError(
                f"partition {event.partition} of {self._topic}, offset {event.records[first.index].offset}: "
                f"{first.message} ({first.reason}); set dead_letter_topic to send such records there, or "
                "on_bad_record=skip; if all records are like this, correct format, field or dimensions"
            )
        if self._bad_records == "dead_letter" and not self._has_accepted():
            self._refuse_wrong_settings(event)
        batch = self._take(event)
        for reject in rejects:
            offset = event.records[reject.index].offset
            self._listener.notify(events.RecordRejected(event.partition, offset, reject.reason, reject.message))
        self._listener.notify(batch)

    def _process_before(self, event: Vectors, index: int) -> None:
        """Process the records before the one that ends the member."""
        self._process(event.before(index))

    def _refuse_wrong_settings(self, event: Vectors) -> None:
        """Raise `RejectLimitError` if the first 100 records of a batch were all rejected."""
        rejects = event.decoded.rejects[:_FIRST]
        if len(rejects) < _FIRST or rejects[-1].index >= _FIRST:
            return
        ((reason, count),) = Counter(reject.reason for reject in rejects).most_common(1)
        example = next(reject for reject in rejects if reject.reason == reason)
        offset, at = event.records[0].offset, event.records[example.index].offset
        raise RejectLimitError(
            f"partition {event.partition} of {self._topic}: {_FIRST} records in a row were rejected, from offset "
            f"{offset} on; {'all' if count == _FIRST else f'{count} of them'} as {reason}, such as offset {at}: "
            f"{example.message}; correct the settings ({self.decoding_settings}) or the producer and start again, "
            "which reads all of them again; or leave such records out: on_bad_record=skip, without a dead_letter_topic"
        )

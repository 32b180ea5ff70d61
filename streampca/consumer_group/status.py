"""The status report of a member of a consumer group: a listener writes it to the store, where the sidecar reads it.

The report is a convenience: if it cannot be written, the process continues. A thread writes it, so that a store that
hangs does not stop the loop.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import structlog

from streampca.consumer_group import events
from streampca.errors import StoreError, StreampcaError
from streampca.stores.process_status import (
    OUTDATED_AFTER_S,
    PartitionStatus,
    Phase,
    ProcessStatus,
    ProcessStatuses,
    TransformStatus,
)

log = structlog.get_logger()

_REPORT_EVERY_S = 3.0  # a report costs one or two fsyncs, or a request
_LAST_REPORT_AFTER_S = 2.0  # longest wait for the report before it
_WAITING_AFTER_S = 5.0  # without a message
_RATE_OVER_S = 10.0


class StatusListener(events.Listener):
    """Reports every few seconds while the loop runs, and at once when partitions are assigned or released.

    A context manager around the member's run: the error that ends it is in the last report.
    `clock` gives seconds since 1970, `ticks` is monotonic. With `output_topic`, it is a member of transform, whose
    records count when their transaction is committed.
    """

    def __init__(
        self,
        reports: ProcessStatuses,
        name: str,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
        output_topic: str | None = None,
    ) -> None:
        self._reports, self._name, self._clock, self._ticks = reports, name, clock, ticks
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="status")
        self._in_flight: Future[None] | None = None
        self._started_at = clock()
        self._state: Phase = "starting"
        self._working: Phase = "learning" if output_topic is None else "transforming"  # after messages
        self._transform = None if output_topic is None else TransformStatus(output_topic=output_topic)
        self._problems: dict[type | str, str] = {}  # what fails → why
        self._stalled: set[int] = set()
        self._partitions: dict[int, PartitionStatus] = {}
        self._messages = 0
        self._last_message = self._next_report = ticks()
        self._samples: deque[tuple[float, int]] = deque([(self._last_message, 0)])  # time, messages

    def __enter__(self) -> Self:
        try:
            self._reports.remove(before=self._started_at - OUTDATED_AFTER_S)
        except StoreError as error:
            log.debug("stale reports not removed", cause=str(error))
        self._report()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, StreampcaError):
            return  # a crash: readers notice that no report follows the last one
        if error is not None:
            self._problems["ended"] = str(error)
        self._state = "stopped"
        self._partitions.clear()
        if self._in_flight is not None:
            wait([self._in_flight], _LAST_REPORT_AFTER_S)
        self._report()
        self._executor.shutdown(wait=True)

    def notify(self, event: events.MemberEvent) -> None:
        if self._transform:
            self._update(self._transform, event)
        match event:
            case events.StartDelayed(needs, cause):
                if needs != "model":  # which `_update` reports
                    self._problems[events.StartDelayed] = cause
                self._on_tick()
            case events.LoopTicked():
                self._problems.pop(events.StartDelayed, None)
                self._on_tick()
            case events.SourcePolled(status):
                if status.connected:
                    self._problems.pop("broker", None)
                elif self._state != "starting":
                    self._problems["broker"] = (
                        f"no broker answers: {status.cause}" if status.cause else "no broker answers"
                    )
            case events.BatchLearned():
                self._on_batch(event, _status_of(event))
            case events.BatchTransformed():
                self._on_batch(event, PartitionStatus(position=event.next, lag=event.lag))
            case events.PartitionStalled(partition, lag, cause):
                self._stalled.add(partition)
                self._problems["decoding"] = cause
                self._partitions[partition] = self._partitions[partition].model_copy(update={"lag": lag})
            case events.PartitionResumed(partition):
                self._on_decoded(partition)
            case events.RestoreFailed(cause) | events.CheckpointPostponed(cause) | events.PublishFailed(cause):
                self._problems[type(event)] = cause
            case events.CheckpointSaved():
                self._problems.pop(events.CheckpointPostponed, None)
            case events.ModelPublished():
                self._problems.pop(events.PublishFailed, None)
            case events.PartitionsAssigned(positions):
                self._problems.pop(events.RestoreFailed, None)
                self._partitions |= {p: PartitionStatus(position=position) for p, position in positions.items()}
                if self._state == "starting":
                    self._state = "waiting"
                self._report()
            case events.PartitionsReleased(partitions):
                for partition in partitions:
                    self._partitions.pop(partition, None)
                    self._on_decoded(partition)
                self._problems.pop(events.RestoreFailed, None)
                self._report()
            case events.MemberStopping():
                self._state = "stopping"
                self._report()

    def _update(self, transform: TransformStatus, event: events.MemberEvent) -> None:
        match event:
            case events.BatchTransformed() | events.ModelFixed():
                transform.model_version = event.version
            case events.TransactionEnded("committed", counts):
                transform.written += counts["written"]
                transform.rejected += counts["rejected"]
                transform.committed_at = self._clock()
                self._problems.pop(events.TransactionEnded, None)
            case events.TransactionEnded("failed"):
                self._problems[events.TransactionEnded] = event.cause
            case events.StartDelayed("model", cause):
                transform.awaits = cause
            case events.SourcePolled():  # it reads only with a model
                transform.awaits = None

    def _on_batch(self, batch: events.BatchLearned | events.BatchTransformed, status: PartitionStatus) -> None:
        self._partitions[batch.partition] = status
        if batch.messages:
            self._messages += batch.messages
            self._last_message = self._ticks()
            self._state = self._working

    def _on_decoded(self, partition: int) -> None:
        self._stalled.discard(partition)
        if not self._stalled:
            self._problems.pop("decoding", None)

    def _on_tick(self) -> None:
        now = self._ticks()
        if now < self._next_report:
            return
        if self._state == self._working and now - self._last_message >= _WAITING_AFTER_S:
            self._state = "waiting"
        self._report()

    def _report(self) -> None:
        """Start to write a report; at the next tick if the one before is still being written."""
        if self._in_flight is not None and not self._in_flight.done():
            self._next_report = self._ticks()
            return
        self._next_report = self._ticks() + _REPORT_EVERY_S
        report = ProcessStatus(
            name=self._name,
            state=self._state,
            trouble="; ".join(self._problems.values()) or None,
            started_at=self._started_at,
            updated_at=self._clock(),
            messages_per_second=0.0 if self._state == "stopped" else self._rate(),
            partitions={str(p): status for p, status in sorted(self._partitions.items())},
            transform=self._transform and self._transform.model_copy(),
        )
        self._in_flight = self._executor.submit(self._write, report)

    def _write(self, report: ProcessStatus) -> None:
        try:
            if self._reports.missing_store() is None:  # else a wrong path would look like a store without a model
                self._reports.write(report)
        except StoreError as error:  # a full disk is logged when a checkpoint fails
            log.debug("status report not written", cause=str(error))

    def _rate(self) -> float:
        now = self._ticks()
        self._samples.append((now, self._messages))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_OVER_S:
            self._samples.popleft()
        before, messages = self._samples[0]
        return (self._messages - messages) / (now - before) if now > before else 0.0


def _status_of(batch: events.BatchLearned) -> PartitionStatus:
    fold, stats = batch.fold, batch.fold.stats
    return PartitionStatus(
        position=fold.position,
        lag=batch.lag,
        learned=stats.learned,
        rejected=sum(stats.rejected.values()),
        loss_ewma=stats.recent_loss,
        clipped=fold.state.clipped,
    )

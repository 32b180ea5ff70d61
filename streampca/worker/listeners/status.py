"""The worker's report of itself: a listener that leaves it in the store, where the sidecar finds it.

The report is a convenience: whatever goes wrong with it is none of the worker's business.
"""

import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import structlog

from streampca.errors import StoreError, StreampcaError
from streampca.stores.worker_status import OUTDATED_AFTER_S, PartitionStatus, State, WorkerStatus, WorkerStatuses
from streampca.stream.fold import Fold
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import SourceStatus
from streampca.worker.listener import Learned, Listener

log = structlog.get_logger()

_EVERY_S = 3.0  # a report costs a flush of the disk or two, in the loop's own thread
_WAITING_AFTER_S = 5.0  # without a message
_RATE_OVER_S = 10.0
_LONGEST_NAME = 200


class StatusListener(Listener):
    """Reports every few seconds while the loop goes round, and at once when partitions come or go.

    A context manager around the worker's life: what ends it is in its last report.
    `clock` tells seconds since 1970, `ticks` those since some moment, never going back.
    """

    def __init__(
        self,
        reports: WorkerStatuses,
        name: str,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reports, self._name, self._clock, self._ticks = reports, name, clock, ticks
        self._started_at = clock()
        self._state: State = "starting"
        self._troubles: dict[str, str] = {}  # what cannot be done → why
        self._stalled: set[int] = set()
        self._partitions: dict[int, PartitionStatus | Learned] = {}
        self._learned = 0  # messages
        self._last_learned = self._next_report = ticks()
        self._samples: deque[tuple[float, int]] = deque([(self._last_learned, 0)])  # times, messages learned until then

    def __enter__(self) -> Self:
        try:
            self._reports.remove(before=self._started_at - OUTDATED_AFTER_S)
        except StoreError as error:
            log.debug("outdated reports not removed", cause=str(error))
        self._report()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, StreampcaError):
            return  # a crash: whoever reads the last report sees that no other follows
        if error is not None:
            self._troubles["ended"] = str(error)
        self._state = "stopped"
        self._partitions.clear()
        self._report()

    def assigned(self, positions: Mapping[int, int]) -> None:
        unknown = {"lag": None, "learned": None, "rejected": None, "loss_ewma": None}
        self._partitions |= {p: PartitionStatus(position=position, **unknown) for p, position in positions.items()}
        if self._state == "starting":
            self._state = "waiting"
        self._report()

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)
            self._goes_on(partition)
        self._report()

    def stalled(self, partition: int, lag: int, cause: str) -> None:
        self._stalled.add(partition)
        self._troubles["decoding"] = cause
        known = _told(self._partitions[partition])
        self._partitions[partition] = known.model_copy(update={"lag": lag})

    def learned(self, batch: Learned) -> None:
        self._goes_on(batch.partition)
        self._partitions[batch.partition] = batch
        if batch.messages:
            self._learned += batch.messages
            self._last_learned = self._ticks()
            self._state = "learning"

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        self._troubles.pop("checkpoint", None)

    def postponed(self, cause: str) -> None:
        self._troubles["checkpoint"] = cause

    def published(self, model: PublishedModel, seconds: float) -> None:
        self._troubles.pop("model", None)

    def unpublished(self, cause: str) -> None:
        self._troubles["model"] = cause

    def polled(self, status: SourceStatus) -> None:
        if status.connected:
            self._troubles.pop("broker", None)
        elif self._state != "starting":
            self._troubles["broker"] = "no broker answers"

    def ticked(self) -> None:
        now = self._ticks()
        if now < self._next_report:
            return
        if self._state == "learning" and now - self._last_learned >= _WAITING_AFTER_S:
            self._state = "waiting"
        self._report()

    def stopping(self, cause: str) -> None:
        self._state = "stopping"
        self._report()

    def _goes_on(self, partition: int) -> None:
        self._stalled.discard(partition)
        if not self._stalled:
            self._troubles.pop("decoding", None)

    def _report(self) -> None:
        self._next_report = self._ticks() + _EVERY_S
        report = WorkerStatus(
            name=self._name,
            state=self._state,
            trouble="; ".join(self._troubles.values()) or None,
            started_at=self._started_at,
            updated_at=self._clock(),
            messages_per_second=0.0 if self._state == "stopped" else self._rate(),
            partitions={str(p): _told(known) for p, known in sorted(self._partitions.items())},
        )
        try:
            self._reports.write(report)
        except StoreError as error:  # the checkpoints' trouble is told aloud; this one is the same, or harmless
            log.debug("report not written", cause=str(error))

    def _rate(self) -> float:
        now = self._ticks()
        self._samples.append((now, self._learned))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_OVER_S:
            self._samples.popleft()
        before, learned = self._samples[0]
        return (self._learned - learned) / (now - before) if now > before else 0.0


def name_of_process() -> str:
    """Host and process id, in the letters that a file of the store may have."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    return f"{host[:_LONGEST_NAME]}-{os.getpid()}"


def _told(known: PartitionStatus | Learned) -> PartitionStatus:
    if isinstance(known, PartitionStatus):
        return known
    stats = known.fold.stats
    return PartitionStatus(
        position=known.fold.position,
        lag=known.lag,
        learned=stats.learned,
        rejected=sum(stats.rejected.values()),
        loss_ewma=stats.loss_ewma / stats.norm_ewma if stats.norm_ewma > 0 else None,
    )

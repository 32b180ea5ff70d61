"""The worker's log: a listener that writes one line for each event a person wants to know."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from streampca.errors import RETRY_MAY_HELP
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import SourceStatus
from streampca.worker.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    GuardClosed,
    GuardOpened,
    Listener,
    ModelPublished,
    OffsetsSkipped,
    PartitionResumed,
    PartitionsAssigned,
    PartitionsReleased,
    PartitionStalled,
    PublishFailed,
    RecordRejected,
    RestoreFailed,
    SourcePolled,
    WorkerEvent,
    WorkerStopping,
)

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")
_PROGRESS_EVERY_S = 60.0


class LogListener(Listener):
    """Logs the worker's events, and a failure that repeats only once until it is over; `clock` is monotonic."""

    activity = "learning"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._restoring = RepeatedFailure("restoring failed", "partitions restored")
        self._saving = RepeatedFailure("checkpoint postponed", "checkpoint saved again")
        self._publishing = RepeatedFailure("publishing failed", "model published again")
        self._decoding = RepeatedFailure("decoding stalled", "decoding resumed")
        self._stalled: set[int] = set()
        self._lags: dict[int, int | None] = {}  # of every partition owned; None until it is known
        self._batches: dict[int, BatchLearned] = {}  # partition → its latest batch
        self._caught_up = False  # since the last assignment
        self._rejected: Counter[str] = Counter()
        self._saved_positions: dict[int, int] = {}
        self._model: PublishedModel | None = None
        self._learned = self._learned_before = 0  # by this worker: in all, and until the last line about progress
        self._progress_at, self._activity = clock(), ""

    def notify(self, event: WorkerEvent) -> None:
        match event:
            case BatchLearned():
                self._on_batch(event)
            case SourcePolled(status):
                self._on_poll(status)
            case CheckpointSaved():
                self._on_checkpoint(event)
            case CheckpointPostponed(cause):
                self._saving.begin(cause)
            case ModelPublished(model, seconds):
                self._on_model(model, seconds)
            case PublishFailed(cause):
                self._publishing.begin(cause)
            case RecordRejected():
                self._on_reject(event)
            case GuardOpened(partition):
                log.warning("guard opened", partition=partition)
            case GuardClosed(partition):
                log.info("guard closed", partition=partition)
            case PartitionStalled(partition, lag, cause):
                self._stalled.add(partition)
                self._lags[partition] = lag
                self._decoding.begin(cause)
            case PartitionResumed(partition):
                self._on_decoded(partition)
            case OffsetsSkipped(partition, position, to, truncated):
                cause = "log truncated, offsets skipped" if truncated else "offsets removed by retention"
                log.error(cause, partition=partition, position=position, to=to)
            case RestoreFailed(cause):
                self._restoring.begin(cause)
            case PartitionsAssigned(positions):
                self._on_assignment(positions)
            case PartitionsReleased():
                self._on_release(event)
            case WorkerStopping(cause):
                log.info("stopping", cause=cause)

    def ended(self) -> None:
        """Log the last line: where the next worker will resume."""
        log.info(
            "worker ended",
            learned=self._learned,
            rejected=self._rejected.total(),
            saved_up_to={str(p): position for p, position in sorted(self._saved_positions.items())},
            last_model=self._model and self._model.version,
        )

    def _on_assignment(self, positions: Mapping[int, int]) -> None:
        self._restoring.end()
        self._lags |= dict.fromkeys(positions)
        self._caught_up = False
        self._saved_positions |= {p: position for p, position in positions.items() if position >= 0}
        read_from = {str(p): "earliest" if position < 0 else position for p, position in sorted(positions.items())}
        log.info("partitions assigned", read_from=read_from)

    def _on_release(self, event: PartitionsReleased) -> None:
        for partition in event.partitions:
            self._batches.pop(partition, None)
            self._lags.pop(partition, None)
            self._saved_positions.pop(partition, None)
            self._stalled.discard(partition)
        write = log.warning if event.lost else log.info
        write("partitions lost" if event.lost else "partitions revoked", partitions=sorted(event.partitions))

    def _on_decoded(self, partition: int) -> None:
        self._stalled.discard(partition)
        if not self._stalled:
            self._decoding.end()

    def _on_batch(self, batch: BatchLearned) -> None:
        self._learned += batch.messages
        self._batches[batch.partition] = batch
        self._lags[batch.partition] = batch.lag
        if not self._caught_up and all(lag is not None and lag <= 0 for lag in self._lags.values()):
            self._caught_up = True
            if learned := sum(latest.fold.stats.learned for latest in self._batches.values()):
                log.info("caught up", partitions=len(self._lags), learned=learned)

    def _on_reject(self, event: RecordRejected) -> None:
        self._rejected[event.reason] += 1
        count = self._rejected[event.reason]
        write = log.warning if count == 10 ** (len(str(count)) - 1) else log.debug  # the 1st, 10th, 100th, …
        write(
            "record rejected",
            partition=event.partition,
            offset=event.offset,
            reason=event.reason,
            message=event.message,
            count=count,
        )

    def _on_checkpoint(self, event: CheckpointSaved) -> None:
        self._saving.end()
        self._saved_positions[event.partition] = event.fold.position
        log.debug(
            "checkpoint saved",
            partition=event.partition,
            next_offset=event.fold.position,
            seconds=round(event.seconds, 4),
        )

    def _on_model(self, model: PublishedModel, seconds: float) -> None:
        self._publishing.end()
        write = log.debug if self._model else log.info  # later versions are in the lines about progress
        self._model = model
        write(
            "model published",
            version=model.version,
            explained_variance_ratio=round(float(model.model.explained_variance_ratio.sum()), 5),
            loss_ewma=None if model.loss_ewma is None else round(model.loss_ewma, 5),
            partitions=len(model.positions),
            seconds=round(seconds, 3),
        )

    def _on_poll(self, status: SourceStatus) -> None:
        now = self._clock()
        if now - self._progress_at >= _PROGRESS_EVERY_S:
            self._log_progress(status, now - self._progress_at)
            self._progress_at, self._learned_before = now, self._learned

    def _log_progress(self, status: SourceStatus, seconds: float) -> None:
        """Every time while messages are learned; otherwise once, when the reason for not learning changes."""
        messages = self._learned - self._learned_before
        activity = self.activity if messages else self._waits_for(status)
        if messages:
            log.info(activity, messages=messages, per_second=round(messages / seconds, 1), **self._state())
        elif activity != self._activity:
            log.info(activity, **self._state())
        self._activity = activity

    def _waits_for(self, status: SourceStatus) -> str:
        if not status.connected:
            return "waiting for broker"
        if not status.member:
            return "waiting to join group"
        if self._stalled:
            return "waiting for schema registry"
        return "idle" if self._lags else "standing by"

    def _state(self) -> dict[str, object]:
        stats = [batch.fold.stats for batch in self._batches.values()]
        norm = sum(s.norm_ewma for s in stats)
        loss = sum(s.loss_ewma for s in stats)
        return {
            "partitions": len(self._lags),
            "lag": sum(lag or 0 for lag in self._lags.values()),
            "loss": round(loss / norm, 5) if norm else None,  # the share that projection loses of recent messages
            "rejected": self._rejected.total(),
            "last_model": self._model and self._model.version,
        }


class RepeatedFailure:
    """A failure that is retried: logged when it begins, when its cause changes, and when it is over.

    All causes that may end by themselves count as one: while an object store is away, each request fails in its way.
    """

    def __init__(self, failed: str, recovered: str) -> None:
        self._failed, self._recovered, self._cause = failed, recovered, ""

    def begin(self, cause: str) -> None:
        if _kind(cause) != _kind(self._cause):
            log.error(self._failed, cause=cause)
        self._cause = cause

    def end(self) -> None:
        if self._cause:
            log.info(self._recovered, after=self._cause)
        self._cause = ""


def _kind(cause: str) -> str:
    """What two causes have in common that are logged once: an offset in a file's name is no other cause."""
    return RETRY_MAY_HELP if RETRY_MAY_HELP in cause else _NUMBERS.sub("", cause)

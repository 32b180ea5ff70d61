"""The worker's log: what every member logs, and the worker's checkpoints and models."""

import time
from collections.abc import Callable

import structlog

from streampca.consumer_group import listener as events
from streampca.consumer_group.listener import MemberEvent
from streampca.consumer_group.log import MemberLog
from streampca.fold.model_file import PublishedModel

log = structlog.get_logger()


class WorkerLog(MemberLog):
    """Logs the worker's events."""

    activity = "learning"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._batches: dict[int, events.BatchLearned] = {}  # partition → its latest batch
        self._saved_positions: dict[int, int] = {}
        self._model: PublishedModel | None = None

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case events.BatchLearned():
                self._on_batch(event)
            case events.CheckpointSaved():
                self._on_checkpoint(event)
            case events.CheckpointPostponed(cause):
                self._fails("checkpoint postponed", cause)
            case events.ModelPublished(model, seconds):
                self._on_model(model, seconds)
            case events.PublishFailed(cause):
                self._fails("publishing failed", cause)
            case events.PartitionsAssigned(positions):
                self._saved_positions |= {p: position for p, position in positions.items() if position >= 0}
            case events.PartitionsReleased(partitions):
                for partition in partitions:
                    self._batches.pop(partition, None)
                    self._saved_positions.pop(partition, None)

    def ended(self) -> None:
        """Log the last line: where the next worker will resume."""
        log.info(
            "worker ended",
            learned=self._messages,
            rejected=self._rejected.total(),
            saved_up_to={str(p): position for p, position in sorted(self._saved_positions.items())},
            last_model=self._model and self._model.version,
        )

    def _on_batch(self, batch: events.BatchLearned) -> None:
        self._batches[batch.partition] = batch
        if self._catches_up(batch.partition, batch.messages, batch.lag) and (
            learned := sum(latest.fold.stats.learned for latest in self._batches.values())
        ):
            log.info("caught up", partitions=len(self._lags), learned=learned)

    def _on_checkpoint(self, event: events.CheckpointSaved) -> None:
        self._ends("checkpoint postponed", "checkpoint saved again")
        self._saved_positions[event.partition] = event.fold.position
        position, seconds = event.fold.position, round(event.seconds, 4)
        log.debug("checkpoint saved", partition=event.partition, next_offset=position, seconds=seconds)

    def _on_model(self, model: PublishedModel, seconds: float) -> None:
        self._ends("publishing failed", "model published again")
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

    def _state(self) -> dict[str, object]:
        stats = [batch.fold.stats for batch in self._batches.values()]
        norm = sum(s.norm_ewma for s in stats)
        loss = sum(s.loss_ewma for s in stats)
        return super()._state() | {
            "loss": round(loss / norm, 5) if norm else None,  # the share that projection loses of recent messages
            "last_model": self._model and self._model.version,
        }

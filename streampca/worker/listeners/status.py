"""The worker's status report: what all members report, outliers, and unusual messages."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    MemberEvent,
    ModelPublished,
    PartitionsReleased,
    PublishFailed,
    RecordRejected,
)
from streampca.consumer_group.status import MemberStatus
from streampca.stores.worker_status import OutlierStatus, PartitionStatus, UnusualStatus, key_text
from streampca.stream.guard import OUTLIER

_OUTLIERS = 10  # in a report


class StatusListener(MemberStatus):
    """Reports the status of a worker; see `MemberStatus`."""

    working = "learning"

    def __init__(self, *arguments: Any) -> None:
        """Takes what `MemberStatus` takes."""
        self._unseen: dict[int, float] = {}  # partition → ratio at its last checkpoint
        self._outliers: deque[OutlierStatus] = deque(maxlen=_OUTLIERS)
        self._unusual: Sequence[UnusualStatus] = ()
        super().__init__(*arguments)

    def details(self) -> dict[str, Any]:
        return {"outliers": list(self._outliers), "unusual": list(self._unusual)}

    def status_of(self, partition: int) -> PartitionStatus:
        return super().status_of(partition).model_copy(update={"unseen_variance_ratio": self._unseen.get(partition)})

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchLearned():
                self._on_batch(event)
                self._unusual = event.unusual
            case CheckpointSaved(partition):
                self._problems.pop("checkpoint", None)
                self._unseen[partition] = event.unseen_variance_ratio
            case CheckpointPostponed(cause):
                self._problems["checkpoint"] = cause
            case ModelPublished():
                self._problems.pop("model", None)
            case PublishFailed(cause):
                self._problems["model"] = cause
            case RecordRejected() if event.reason == OUTLIER:
                self._on_outlier(event)
            case PartitionsReleased(partitions):
                for partition in partitions:
                    self._unseen.pop(partition, None)

    def _on_outlier(self, event: RecordRejected) -> None:
        origin = {"partition": event.partition, "offset": event.offset, "key": key_text(event.key)}
        self._outliers.appendleft(OutlierStatus(**origin, at=self._clock(), message=event.message))

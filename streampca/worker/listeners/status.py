"""The worker's status report: what all members report, and failures to save or publish."""

from typing import Any

from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    MemberEvent,
    ModelPublished,
    PartitionsReleased,
    PublishFailed,
)
from streampca.consumer_group.status import MemberStatus
from streampca.stores.worker_status import PartitionStatus


class StatusListener(MemberStatus):
    """Reports the status of a worker; see `MemberStatus`."""

    working = "learning"

    def __init__(self, *arguments: Any) -> None:
        """Takes what `MemberStatus` takes."""
        self._unseen: dict[int, float] = {}  # partition → ratio at its last checkpoint
        super().__init__(*arguments)

    def status_of(self, partition: int) -> PartitionStatus:
        return super().status_of(partition).model_copy(update={"unseen_variance_ratio": self._unseen.get(partition)})

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchLearned():
                self._on_batch(event)
            case CheckpointSaved(partition):
                self._problems.pop("checkpoint", None)
                self._unseen[partition] = event.unseen_variance_ratio
            case CheckpointPostponed(cause):
                self._problems["checkpoint"] = cause
            case ModelPublished():
                self._problems.pop("model", None)
            case PublishFailed(cause):
                self._problems["model"] = cause
            case PartitionsReleased(partitions):
                for partition in partitions:
                    self._unseen.pop(partition, None)

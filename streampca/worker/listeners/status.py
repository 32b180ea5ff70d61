"""The worker's status report: what all members report, and failures to save or publish."""

from streampca.consumer_group.listener import (
    BatchLearned,
    CheckpointPostponed,
    CheckpointSaved,
    MemberEvent,
    ModelPublished,
    PublishFailed,
)
from streampca.consumer_group.status import MemberStatus


class StatusListener(MemberStatus):
    """Reports the status of a worker; see `MemberStatus`."""

    working = "learning"

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchLearned():
                self._on_batch(event)
            case CheckpointSaved():
                self._problems.pop("checkpoint", None)
            case CheckpointPostponed(cause):
                self._problems["checkpoint"] = cause
            case ModelPublished():
                self._problems.pop("model", None)
            case PublishFailed(cause):
                self._problems["model"] = cause

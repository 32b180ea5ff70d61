"""The status report of a member of `streampca transform`, which the sidecar's page shows beside the workers'."""

from typing import Any

from streampca.consumer_group.listener import (
    BatchTransformed,
    MemberEvent,
    ModelAwaited,
    RecordRejected,
    SourcePolled,
    TransactionEnded,
)
from streampca.consumer_group.status import MemberStatus
from streampca.stores.worker_status import TransformStatus


class TransformStatusListener(MemberStatus):
    """Reports the status of a member; see `MemberStatus`. Records count when their transaction is committed."""

    working = "transforming"

    def __init__(self, output_topic: str, *arguments: Any) -> None:
        """`arguments` are those of `MemberStatus`."""
        self._output_topic = output_topic
        self._version: int | None = None
        self._awaits: str | None = None
        self._written = self._rejected = 0
        self._open_written = self._open_rejected = 0  # in the transaction that has not ended
        self._committed_at: float | None = None
        super().__init__(*arguments)

    def details(self) -> dict[str, Any]:
        status = TransformStatus(
            output_topic=self._output_topic,
            model_version=self._version,
            awaits=self._awaits,
            written=self._written,
            rejected=self._rejected,
            committed_at=self._committed_at,
        )
        return {"transform": status}

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchTransformed():
                self._version = event.version
                self._open_written += event.outputs
                self._on_batch(event)
            case RecordRejected():
                self._open_rejected += 1
            case TransactionEnded():
                self._on_end(event)
            case ModelAwaited(cause):
                self._awaits = cause
            case SourcePolled():  # it reads only with a model
                self._awaits = None

    def _on_end(self, event: TransactionEnded) -> None:
        if event.outcome == "committed":
            self._written += self._open_written
            self._rejected += self._open_rejected
            self._committed_at = self._clock()
            self._problems.pop("transaction", None)
        elif event.outcome == "failed":
            self._problems["transaction"] = event.cause
        self._open_written = self._open_rejected = 0

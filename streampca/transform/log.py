"""The log of `streampca transform`: what every member logs, and its transactions and models."""

import time
from collections.abc import Callable

import structlog

from streampca.consumer_group.listener import BatchTransformed, MemberEvent, ModelAwaited, TransactionEnded
from streampca.consumer_group.log import MemberLog

log = structlog.get_logger()


class TransformLog(MemberLog):
    """Logs the events of a member."""

    activity = "transforming"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._version: int | None = None
        self._committed = self._written = 0

    def notify(self, event: MemberEvent) -> None:
        super().notify(event)
        match event:
            case BatchTransformed():
                self._on_batch(event)
            case TransactionEnded("committed"):
                self._ends("transaction failed", "transactions committed again")
                self._committed += event.records
            case TransactionEnded("failed"):
                self._fails("transaction failed", event.cause)
            case ModelAwaited(cause):
                self._fails("waiting for model", cause, "warning")

    def ended(self) -> None:
        """Log the last line."""
        log.info("transform ended", committed=self._committed, **self._state())

    def _on_batch(self, event: BatchTransformed) -> None:
        if event.version != self._version:
            write = log.debug if self._version is not None else log.info
            write("model in use", version=event.version)
        self._version = event.version
        self._written += event.outputs
        if self._catches_up(event.partition, event.messages, event.lag):
            log.info("caught up", partitions=len(self._lags), read=self._messages)

    def _state(self) -> dict[str, object]:
        return super()._state() | {"written": self._written, "model": self._version}

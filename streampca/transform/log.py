"""The log of `streampca transform`: what a worker logs of the group and its records, and of transactions and models."""

import time
from collections.abc import Callable

import structlog

from streampca.worker.listener import BatchTransformed, ModelAwaited, TransactionEnded, WorkerEvent
from streampca.worker.listeners.log import LogListener, RepeatedFailure

log = structlog.get_logger()


class TransformLog(LogListener):
    """Logs the events of a member; a failure that repeats only once until it is over."""

    activity = "transforming"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._transactions = RepeatedFailure("transaction failed", "transactions committed again")
        self._awaited = ""  # why there is no model
        self._version: int | None = None
        self._committed = self._written = 0

    def notify(self, event: WorkerEvent) -> None:
        match event:
            case BatchTransformed():
                self._on_batch_transformed(event)
            case TransactionEnded("committed"):
                self._transactions.end()
                self._committed += event.records
            case TransactionEnded("failed"):
                self._transactions.begin(event.cause)
            case ModelAwaited(cause):
                if cause != self._awaited:
                    log.warning("waiting for model", cause=cause)
                self._awaited = cause
            case _:
                super().notify(event)

    def ended(self) -> None:
        log.info("transform ended", committed=self._committed, **self._state())

    def _on_batch_transformed(self, event: BatchTransformed) -> None:
        if event.version != self._version:
            write = log.debug if self._version is not None else log.info
            write("model in use", version=event.version)
        self._version = event.version
        self._learned += event.messages
        self._written += event.outputs
        self._lags[event.partition] = event.lag
        if not self._caught_up and all(lag is not None and lag <= 0 for lag in self._lags.values()):
            self._caught_up = True
            log.info("caught up", partitions=len(self._lags), read=self._learned)

    def _state(self) -> dict[str, object]:
        return {
            "partitions": len(self._lags),
            "lag": sum(lag or 0 for lag in self._lags.values()),
            "written": self._written,
            "rejected": self._rejected.total(),
            "model": self._version,
        }

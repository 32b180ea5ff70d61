"""The worker's log: a listener that tells what happens, an event a line."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import structlog

from streampca.stream.fold import Fold
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import SourceStatus
from streampca.worker.listener import Learned, Listener

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")
_EVERY_S = 60.0  # between two lines about what it is doing


class LogListener(Listener):
    """Says what a person wants to know, and a repeated trouble once until it is over; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._saving, self._publishing = _Trouble("checkpoint"), _Trouble("model")
        self._decoding = _Trouble("decoding", "goes on again")
        self._owned: dict[int, Learned | None] = {}  # partition → what was last heard of it
        self._stalled: set[int] = set()
        self._caught_up = False  # since the last assignment
        self._rejected: Counter[str] = Counter()
        self._positions: dict[int, int] = {}  # as they are on disk
        self._model: PublishedModel | None = None
        self._learned = self._learned_before = 0  # by this worker: in all, and when it last told
        self._told_at, self._told = clock(), ""

    def assigned(self, positions: Mapping[int, int]) -> None:
        self._owned |= dict.fromkeys(positions)
        self._caught_up = False
        self._positions |= {p: o for p, o in positions.items() if o >= 0}
        read_from = {str(p): "earliest" if o < 0 else o for p, o in sorted(positions.items())}
        log.info("partitions assigned", read_from=read_from)

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        partitions = sorted(partitions)
        for partition in partitions:
            self._owned.pop(partition, None)
            self._stalled.discard(partition)
            self._positions.pop(partition, None)
        (log.warning if lost else log.info)("partitions lost" if lost else "partitions revoked", partitions=partitions)

    def stalled(self, partition: int, lag: int, cause: str) -> None:
        self._stalled.add(partition)
        if known := self._owned.get(partition):
            self._owned[partition] = known._replace(lag=lag)
        self._decoding.is_there(cause)

    def learned(self, batch: Learned) -> None:
        self._stalled.discard(batch.partition)
        if not self._stalled:
            self._decoding.is_over()
        self._learned += batch.messages
        self._owned[batch.partition] = batch
        if not self._caught_up and all(last and last.lag <= 0 for last in self._owned.values()):
            self._tell_caught_up()

    def rejected(self, partition: int, offset: int, reason: str, message: str) -> None:
        self._rejected[reason] += 1
        count = self._rejected[reason]
        tell = log.warning if count == 10 ** (len(str(count)) - 1) else log.debug  # the 1st, 10th, 100th, …
        tell("record rejected", partition=partition, offset=offset, reason=reason, message=message, count=count)

    def skipped(self, partition: int, position: int, to: int) -> None:
        log.error("offsets skipped, removed by retention", partition=partition, position=position, to=to)

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        self._saving.is_over()
        self._positions[partition] = fold.position
        log.debug("checkpoint saved", partition=partition, next_offset=fold.position, seconds=round(seconds, 4))

    def postponed(self, cause: str) -> None:
        self._saving.is_there(cause)

    def published(self, model: PublishedModel, seconds: float) -> None:
        self._publishing.is_over()
        tell = log.debug if self._model else log.info  # later ones are in the line of the minute
        self._model = model
        tell(
            "model published",
            version=model.version,
            explained_variance_ratio=round(float(model.model.explained_variance_ratio.sum()), 5),
            loss_ewma=None if model.loss_ewma is None else round(model.loss_ewma, 5),
            partitions=len(model.positions),
            seconds=round(seconds, 3),
        )

    def unpublished(self, cause: str) -> None:
        self._publishing.is_there(cause)

    def polled(self, status: SourceStatus) -> None:
        now = self._clock()
        if now - self._told_at >= _EVERY_S:
            self._tell(status, now - self._told_at)
            self._told_at, self._learned_before = now, self._learned

    def stopping(self, cause: str) -> None:
        log.info("stopping", cause=cause)

    def ended(self) -> None:
        """The last line: where another worker would go on."""
        saved = {str(p): o for p, o in sorted(self._positions.items())}
        rejected = self._rejected.total()
        version = self._model and self._model.version
        log.info("worker ended", learned=self._learned, rejected=rejected, saved_up_to=saved, last_model=version)

    def _tell_caught_up(self) -> None:
        self._caught_up = True
        learned = sum(last.fold.stats.learned for last in self._owned.values() if last)
        if learned:
            log.info("caught up", partitions=len(self._owned), learned=learned)

    def _tell(self, status: SourceStatus, seconds: float) -> None:
        """What it has been doing, every time when it learned something; else once, until that is another thing."""
        messages = self._learned - self._learned_before
        doing = "learning" if messages else self._idling(status)
        if messages:
            log.info(doing, messages=messages, per_second=round(messages / seconds, 1), **self._state())
        elif doing != self._told:
            log.info(doing, **self._state())
        self._told = doing

    def _idling(self, status: SourceStatus) -> str:
        if not status.connected:
            return "waiting for a broker"
        if not status.member:
            return "waiting for a place in the group"
        if self._stalled:
            return "waiting for the schema registry"
        return "nothing new to learn" if self._owned else "standing by, no partition is left for this worker"

    def _state(self) -> dict[str, object]:
        heard = [batch for batch in self._owned.values() if batch]
        norm = sum(batch.fold.stats.norm_ewma for batch in heard)
        loss = sum(batch.fold.stats.loss_ewma for batch in heard)
        return {
            "partitions": len(self._owned),
            "lag": sum(batch.lag for batch in heard),
            "loss": round(loss / norm, 5) if norm else None,  # the share of a message that projection loses, of late
            "rejected": self._rejected.total(),
            "last_model": self._model and self._model.version,
        }


class _Trouble:
    """Something that fails again and again, told when it begins, when its cause is another one, and when it is over."""

    def __init__(self, thing: str, over: str = "saved again") -> None:
        self._thing, self._over, self._cause = thing, over, ""

    def is_there(self, cause: str) -> None:
        if _NUMBERS.sub("", cause) != _NUMBERS.sub("", self._cause):  # a file's name holds an offset, which moves on
            log.error(f"{self._thing} postponed, will try again", cause=cause)
        self._cause = cause

    def is_over(self) -> None:
        if self._cause:
            log.info(f"{self._thing} {self._over}", after=self._cause)
        self._cause = ""

"""The worker's log: a listener that tells what happens, an event a line."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import structlog

from streampca.listening import Learned, Listener
from streampca.stream.fold import Fold
from streampca.stream.published import Published

log = structlog.get_logger()

_NUMBERS = re.compile(r"[0-9]+")


class Story(Listener):
    """Says what a person wants to know, and a repeated trouble once until it is over."""

    def __init__(self) -> None:
        self._saving, self._publishing = _Trouble("checkpoint"), _Trouble("model")
        self._caught_up: set[int] = set()
        self._rejected: Counter[str] = Counter()

    def assigned(self, positions: Mapping[int, int]) -> None:
        log.info("partitions assigned", positions={str(p): o for p, o in sorted(positions.items())})

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        partitions = sorted(partitions)
        self._caught_up.difference_update(partitions)
        (log.warning if lost else log.info)("partitions lost" if lost else "partitions revoked", partitions=partitions)

    def learned(self, batch: Learned) -> None:
        if batch.lag <= 0 and batch.partition not in self._caught_up and batch.fold.tally.learned:
            self._caught_up.add(batch.partition)
            log.info("caught up", partition=batch.partition, learned=batch.fold.tally.learned)

    def rejected(self, partition: int, offset: int, reason: str, message: str) -> None:
        self._rejected[reason] += 1
        count = self._rejected[reason]
        tell = log.warning if count == 10 ** (len(str(count)) - 1) else log.debug  # the 1st, 10th, 100th, …
        tell("record rejected", partition=partition, offset=offset, reason=reason, message=message, count=count)

    def skipped(self, partition: int, position: int, to: int) -> None:
        log.error("offsets skipped, removed by retention", partition=partition, position=position, to=to)

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        self._saving.is_over()
        log.debug("checkpoint saved", partition=partition, next_offset=fold.position, seconds=round(seconds, 4))

    def postponed(self, cause: str) -> None:
        self._saving.is_there(cause)

    def published(self, model: Published, seconds: float) -> None:
        self._publishing.is_over()
        log.info(
            "model published",
            version=model.version,
            explained_variance_ratio=round(float(model.model.explained_variance_ratio.sum()), 5),
            loss_ewma=None if model.loss_ewma is None else round(model.loss_ewma, 5),
            partitions=len(model.positions),
            seconds=round(seconds, 3),
        )

    def unpublished(self, cause: str) -> None:
        self._publishing.is_there(cause)

    def stopping(self, cause: str) -> None:
        log.info("stopping", cause=cause)


class _Trouble:
    """Something that fails again and again, told when it begins, when its cause is another one, and when it is over."""

    def __init__(self, thing: str) -> None:
        self._thing, self._cause = thing, ""

    def is_there(self, cause: str) -> None:
        if _NUMBERS.sub("", cause) != _NUMBERS.sub("", self._cause):  # a file's name holds an offset, which moves on
            log.error(f"{self._thing} postponed, will try again", cause=cause)
        self._cause = cause

    def is_over(self) -> None:
        if self._cause:
            log.info(f"{self._thing} saved again", after=self._cause)
        self._cause = ""

"""What the worker tells of its life. Metrics and logs listen; the worker knows neither."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streampca.pca.learning import Scores
from streampca.stream.fold import Fold
from streampca.stream.model_file import PublishedModel
from streampca.stream.record import SourceStatus


class Learned(NamedTuple):
    """One batch of one partition, handled."""

    partition: int
    fold: Fold
    messages: int
    scores: list[Scores]
    seconds: float
    lag: int  # messages of the partition still to come


class Listener:
    """Does nothing; a listener overrides what it wants to hear."""

    def assigned(self, positions: Mapping[int, int]) -> None:
        """Partitions are ours, and are read from these positions on (-1: from the earliest record)."""

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        """Partitions are no longer ours; `lost` when it was too late to save."""

    def learned(self, batch: Learned) -> None:
        """A batch was learned."""

    def rejected(self, partition: int, offset: int, reason: str, message: str) -> None:
        """A record could not be learned."""

    def stalled(self, partition: int, lag: int, cause: str) -> None:
        """Its records cannot be decoded now, through no fault of theirs; `learned` is the next when they can be."""

    def skipped(self, partition: int, position: int, to: int) -> None:
        """Retention has removed records before they could be read."""

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        """A checkpoint is on disk."""

    def postponed(self, cause: str) -> None:
        """Checkpoints could not be made this time; nothing is lost, it will be tried again."""

    def published(self, model: PublishedModel, seconds: float) -> None:
        """A model is on disk."""

    def unpublished(self, cause: str) -> None:
        """A model could not be made this time; it will be tried again."""

    def ticked(self) -> None:
        """The loop goes round: comes many times a minute, whether there are records or not."""

    def polled(self, status: SourceStatus) -> None:
        """The source was asked for news; this is how it stands with the brokers now."""

    def stopping(self, cause: str) -> None:
        """The loop has ended."""


class Listeners(Listener):
    """Several listeners as one."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def assigned(self, positions: Mapping[int, int]) -> None:
        for listener in self._listeners:
            listener.assigned(positions)

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        for listener in self._listeners:
            listener.released(partitions, lost=lost)

    def learned(self, batch: Learned) -> None:
        for listener in self._listeners:
            listener.learned(batch)

    def rejected(self, partition: int, offset: int, reason: str, message: str) -> None:
        for listener in self._listeners:
            listener.rejected(partition, offset, reason, message)

    def stalled(self, partition: int, lag: int, cause: str) -> None:
        for listener in self._listeners:
            listener.stalled(partition, lag, cause)

    def skipped(self, partition: int, position: int, to: int) -> None:
        for listener in self._listeners:
            listener.skipped(partition, position, to)

    def saved(self, partition: int, fold: Fold, seconds: float) -> None:
        for listener in self._listeners:
            listener.saved(partition, fold, seconds)

    def postponed(self, cause: str) -> None:
        for listener in self._listeners:
            listener.postponed(cause)

    def published(self, model: PublishedModel, seconds: float) -> None:
        for listener in self._listeners:
            listener.published(model, seconds)

    def unpublished(self, cause: str) -> None:
        for listener in self._listeners:
            listener.unpublished(cause)

    def ticked(self) -> None:
        for listener in self._listeners:
            listener.ticked()

    def polled(self, status: SourceStatus) -> None:
        for listener in self._listeners:
            listener.polled(status)

    def stopping(self, cause: str) -> None:
        for listener in self._listeners:
            listener.stopping(cause)

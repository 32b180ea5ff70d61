"""Restores the partitions that were assigned, and retries while the store or the brokers do not answer.

Meanwhile the partitions are not read, and the member keeps polling, so that it stays in the group.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from streampca.consumer_group.listener import Listener, RestoreFailed
from streampca.errors import ForeignStoreError, StoreError

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0
_STORE_DELAY_S = 60.0  # longest time that network file systems may show a folder as it was, by default


class Restorer(Generic[T]):
    """Restores partitions; holds those that are assigned but not restored yet."""

    def __init__(
        self,
        restore: Callable[[Collection[int]], Mapping[int, T]],
        restored: Callable[[Mapping[int, T]], None],
        listener: Listener,
    ) -> None:
        self._restore, self._restored, self._listener = restore, restored, listener
        self._waiting: set[int] = set()
        self._pause_s = _FIRST_PAUSE_S
        self._retry_at: float | None = None
        self._refuse_at: float | None = None

    def begin(self, partitions: Collection[int], *, wait: bool = False) -> None:
        """Restore these partitions, now or as soon as it is possible; with `wait`, after a pause."""
        self._waiting |= set(partitions)
        self._pause_s, self._retry_at, self._refuse_at = _FIRST_PAUSE_S, None, None
        if not wait:
            self._attempt(refuse=False)

    def forget(self, partitions: Collection[int]) -> None:
        """Drop partitions that were revoked or lost."""
        self._waiting -= set(partitions)

    def retry_when_due(self, now: float) -> None:
        """Try again if something waits and the pause is over, which starts with the first call after a failure.

        Raises `ForeignStoreError` if the group is still ahead of the store after a minute.
        """
        if not self._waiting:
            return
        self._refuse_at = now + _STORE_DELAY_S if self._refuse_at is None else self._refuse_at
        if self._retry_at is None:
            self._retry_at = now + self._pause_s
        if now >= self._retry_at:
            self._pause_s, self._retry_at = min(2 * self._pause_s, _LONGEST_PAUSE_S), None
            self._attempt(refuse=now >= self._refuse_at)

    def _attempt(self, *, refuse: bool) -> None:
        try:
            states = self._restore(self._waiting)
        except ForeignStoreError as error:
            if refuse:
                raise
            self._listener.notify(RestoreFailed(str(error)))
        except (StoreError, TimeoutError) as error:
            self._listener.notify(RestoreFailed(str(error)))
        else:
            self._waiting = set()
            self._restored(states)

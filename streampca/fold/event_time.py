"""The time of a partition, computed from the timestamps of its records alone.

It is the greatest median that 63 consecutive timestamps have had so far. So it never runs backwards, and records whose
timestamps are ahead of it count as new ones without moving it, unless they are the majority for a while: a producer
with a wrong clock cannot make the model forget. The time is that of 31 records ago, which changes no weight as long as
all of a partition's records are weighted by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DAY_MS = 24 * 3600 * 1000
_WINDOW = 63  # records
_MIDDLE = _WINDOW // 2
_AT_ONCE = 4096  # windows that are sorted in one step; bounds the memory


@dataclass(frozen=True, slots=True)
class EventTime:
    """The current time and the timestamps it depends on, in milliseconds since 1970; -1 when unknown."""

    now_ms: int = -1
    recent: tuple[int, ...] = ()  # the last 62 known timestamps
    ahead: int = 0  # number of records that were more than a day ahead of the time

    def advance(self, timestamps: Sequence[int] | NDArray[np.int64]) -> tuple["EventTime", NDArray[np.int64]]:
        """The time after these records, and the milliseconds by which each of them advanced it."""
        stamps = np.asarray(timestamps, np.int64)
        has_time = stamps >= 0
        unknown = (-1,) * (_WINDOW - 1 - len(self.recent))
        recent = np.concatenate([np.array(unknown + self.recent, np.int64), stamps[has_time]])
        nows = np.maximum.accumulate(np.concatenate([[self.now_ms], _medians(recent)]))  # before each, and at the end
        steps = np.zeros(len(stamps), np.int64)
        steps[has_time] = np.where(nows[:-1] >= 0, np.diff(nows), 0)
        last = recent[len(recent) - _WINDOW + 1 :]
        ahead = self.ahead + _count_ahead(recent, nows[:-1])
        return EventTime(int(nows[-1]), tuple(last[last >= 0].tolist()), ahead), steps


def _medians(stamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The median of every 63 consecutive ones of (n + 62) timestamps."""
    n = len(stamps) - _WINDOW + 1
    if (stamps[1:] >= stamps[:-1]).all():  # the usual case, and faster
        return stamps[_MIDDLE : _MIDDLE + n]
    if not n:
        return stamps[:0]
    windows = np.lib.stride_tricks.sliding_window_view(stamps, _WINDOW)
    starts = range(0, n, _AT_ONCE)
    return np.concatenate([np.partition(windows[i : i + _AT_ONCE], _MIDDLE, axis=1)[:, _MIDDLE] for i in starts])


def _count_ahead(recent: NDArray[np.int64], nows: NDArray[np.int64]) -> int:
    """Count the last timestamps that are more than a day ahead of the time and of the two timestamps before them.

    The time alone would count all records after a pause of a day, until it has advanced.
    """
    n = len(nows)
    new = len(recent) - n
    before = np.minimum(recent[new - 2 : new - 2 + n], recent[new - 1 : new - 1 + n])
    return int(np.count_nonzero((nows >= 0) & (recent[new:] - np.maximum(nows, before) > _DAY_MS)))

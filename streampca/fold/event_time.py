"""The event time of a partition, computed from the timestamps of its records alone.

It is the greatest median that 63 consecutive timestamps have had so far. So it never runs backwards. A few timestamps
ahead of it do not move it, so a producer with a wrong clock cannot make the model forget.

The median lags by 31 records. That changes no weight, since all records of a partition are weighted by the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DAY_MS = 24 * 3600 * 1000
_WINDOW = 63  # records
_MIDDLE = _WINDOW // 2
_WINDOWS_PER_STEP = 4096  # windows that are sorted at a time, which bounds the memory
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class EventTime:
    """The current event time and the timestamps that it depends on, in milliseconds since 1970."""

    now_ms: int = _UNKNOWN
    recent: tuple[int, ...] = ()  # the last 62 known timestamps
    ahead: int = 0  # number of records that were more than a day ahead of the event time

    def advance(self, timestamps: Sequence[int] | NDArray[np.int64]) -> tuple["EventTime", NDArray[np.int64]]:
        """Return the event time after these records, and the milliseconds by which each record advanced it (n,).

        Records without a timestamp (−1) do not advance it.
        """
        timestamps = np.asarray(timestamps, np.int64)
        has_time = timestamps >= 0
        # The new timestamps follow 62 earlier ones, so that each ends a window of 63. At the start of a stream, where
        # there are fewer, −1 takes the place of the others.
        earlier = np.full(_WINDOW - 1, _UNKNOWN, np.int64)
        earlier[len(earlier) - len(self.recent) :] = self.recent
        window = np.concatenate([earlier, timestamps[has_time]])
        # The event time before the first new timestamp and after each of them: the greatest median so far.
        times_ms = np.maximum.accumulate(np.concatenate([[self.now_ms], _medians(window)]))
        before_ms = times_ms[:-1]
        steps_ms = np.zeros(len(timestamps), np.int64)
        steps_ms[has_time] = np.where(before_ms >= 0, np.diff(times_ms), 0)  # the first event time is not a step
        last = window[len(window) - _WINDOW + 1 :]
        event_time = EventTime(
            now_ms=int(times_ms[-1]),
            recent=tuple(last[last >= 0].tolist()),
            ahead=self.ahead + _count_ahead(window, before_ms),
        )
        return event_time, steps_ms


def _medians(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the median of each 63 consecutive timestamps; of n + 62 timestamps, (n,)."""
    n = len(timestamps) - _WINDOW + 1
    is_sorted = (timestamps[1:] >= timestamps[:-1]).all()
    if is_sorted:  # the usual case; the median of a window is its middle
        return timestamps[_MIDDLE : _MIDDLE + n]
    if n == 0:
        return timestamps[:0]
    windows = np.lib.stride_tricks.sliding_window_view(timestamps, _WINDOW)
    medians = []
    for start in range(0, n, _WINDOWS_PER_STEP):
        partitioned = np.partition(windows[start : start + _WINDOWS_PER_STEP], _MIDDLE, axis=1)
        medians.append(partitioned[:, _MIDDLE])
    return np.concatenate(medians)


def _count_ahead(window: NDArray[np.int64], before_ms: NDArray[np.int64]) -> int:
    """Count the new timestamps that are more than a day ahead of the event time and of the two timestamps before them.

    Compared with the event time alone, all records after a pause of a day would count until the median has followed.
    `window` ends with the n new timestamps; `before_ms` (n,) is the event time before each, −1 if unknown.
    """
    n = len(before_ms)
    first_new = len(window) - n
    one_before = window[first_new - 1 : first_new - 1 + n]
    two_before = window[first_new - 2 : first_new - 2 + n]
    earlier_ms = np.maximum(before_ms, np.minimum(one_before, two_before))
    is_ahead = (before_ms >= 0) & (window[first_new:] - earlier_ms > _DAY_MS)
    return int(np.count_nonzero(is_ahead))

"""The event time of a partition: the greatest median that 63 consecutive timestamps of its records have had so far.

So the event time never runs backwards, and a few timestamps ahead of it do not move it. A producer with a wrong clock
cannot make the model forget.

The median lags by 31 records. That changes no weight, since all records of a partition are weighted by the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DAY_MS = 24 * 3600 * 1000
_WINDOW = 63  # timestamps of which the median is taken
_MIDDLE = _WINDOW // 2  # the index of the median in a sorted window
_WINDOWS_PER_STEP = 4096  # windows that are sorted at a time, which bounds the memory
_UNKNOWN = -1  # no timestamp; less than every timestamp


@dataclass(frozen=True, slots=True)
class EventTime:
    """The current event time and the timestamps that it depends on, in milliseconds since 1970."""

    now_ms: int = _UNKNOWN
    recent: tuple[int, ...] = ()  # the last 62 known timestamps
    ahead: int = 0  # how many timestamps were more than a day ahead of the event time

    def advance(self, timestamps: Sequence[int] | NDArray[np.int64]) -> tuple["EventTime", NDArray[np.int64]]:
        """Return the event time after n records, and by how many milliseconds each record advanced it (n,).

        The event time is the greatest median that any 63 consecutive timestamps have had so far. Records without a
        timestamp (−1) do not advance the event time, and the first event time does not count as an advance.
        """
        timestamps = np.asarray(timestamps, np.int64)
        has_time = timestamps >= 0
        new_ms = timestamps[has_time]  # (m,), the timestamps that are known
        # A window is 63 consecutive timestamps. Each new timestamp ends a window, so 62 earlier timestamps come first.
        # At the start of a partition, some of these are `_UNKNOWN`, which is less than every known timestamp.
        timestamps_ms = np.concatenate([self._pad_recent(), new_ms])  # (62 + m,)
        medians_ms = _compute_medians(timestamps_ms)  # (m,); `_UNKNOWN` if most of the window is unknown
        # The event time before all new timestamps, and after each of them: the greatest median so far.
        event_times_ms = np.maximum.accumulate(np.concatenate([[self.now_ms], medians_ms]))  # (1 + m,)
        event_times_before_ms = event_times_ms[:-1]  # (m,), before each new timestamp
        has_no_event_time = event_times_before_ms == _UNKNOWN
        elapsed_ms = np.zeros(len(timestamps), np.int64)
        elapsed_ms[has_time] = np.where(has_no_event_time, 0, np.diff(event_times_ms))
        last_ms = timestamps_ms[-(_WINDOW - 1) :]
        # for a metric: the new timestamps that are far ahead of the event time
        far_ahead_count = _count_far_ahead(timestamps_ms, event_times_before_ms)
        event_time = EventTime(
            now_ms=int(event_times_ms[-1]),
            recent=tuple(last_ms[last_ms >= 0].tolist()),  # fewer than 62 at the start
            ahead=self.ahead + far_ahead_count,
        )
        return event_time, elapsed_ms

    def _pad_recent(self) -> tuple[int, ...]:
        """Return the last 62 known timestamps; at the start of a partition, the first of them are `_UNKNOWN`."""
        missing = (_UNKNOWN,) * (_WINDOW - 1 - len(self.recent))
        return missing + self.recent


def _compute_medians(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the medians (n,) of the n windows of 63 consecutive timestamps; there are n + 62 timestamps."""
    n = len(timestamps) - _WINDOW + 1
    if n == 0:  # `sliding_window_view` would raise
        return np.empty(0, np.int64)
    is_sorted = (timestamps[1:] >= timestamps[:-1]).all()
    if is_sorted:  # an optimisation: usually they are sorted
        return timestamps[_MIDDLE : _MIDDLE + n]
    windows = np.lib.stride_tricks.sliding_window_view(timestamps, _WINDOW)
    medians = np.empty(n, np.int64)
    for start in range(0, n, _WINDOWS_PER_STEP):
        step = slice(start, start + _WINDOWS_PER_STEP)
        medians[step] = np.partition(windows[step], _MIDDLE, axis=1)[:, _MIDDLE]
    return medians


def _count_far_ahead(timestamps_ms: NDArray[np.int64], event_times_ms: NDArray[np.int64]) -> int:
    """Count the new timestamps that are more than a day ahead of the event time, as a wrong clock writes them.

    `timestamps_ms` holds at least two earlier timestamps, and then m new ones. `event_times_ms` (m,) has the event time
    before each new timestamp.

    After a long pause of the stream, the event time lags for some records, whose timestamps are right. So a timestamp
    must also be more than a day ahead of the smaller of the two timestamps before it. Then only the first two records
    after the pause are counted by mistake. The larger of the two is not compared: a wrong clock may have written it.
    """
    first_new = len(timestamps_ms) - len(event_times_ms)
    new_ms = timestamps_ms[first_new:]
    one_before_ms = timestamps_ms[first_new - 1 : -1]
    two_before_ms = timestamps_ms[first_new - 2 : -2]
    reference_ms = np.maximum(event_times_ms, np.minimum(one_before_ms, two_before_ms))
    has_event_time = event_times_ms >= 0
    is_ahead = has_event_time & (new_ms - reference_ms > _DAY_MS)
    return int(np.count_nonzero(is_ahead))

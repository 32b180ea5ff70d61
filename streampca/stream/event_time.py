"""The time of a partition, computed from the timestamps of its records alone.

It never runs backwards, and advances only to a time that three consecutive records have reached. So a single record
from the far future is counted, but does not make the model forget everything before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class EventTime:
    """The current time and the last two timestamps, in milliseconds since 1970; -1 when unknown."""

    now_ms: int = -1
    last_ms: int = -1
    before_last_ms: int = -1
    ahead: int = 0  # number of records that were more than a day ahead of the time

    def advance(self, timestamps: Sequence[int] | NDArray[np.int64]) -> tuple["EventTime", NDArray[np.int64]]:
        """The time after these records, and the milliseconds by which each of them advanced it."""
        stamps = np.asarray(timestamps, np.int64)
        known = stamps >= 0
        recent = np.concatenate([[self.before_last_ms, self.last_ms], stamps[known]])
        reached = np.minimum(np.minimum(recent[:-2], recent[1:-1]), recent[2:])  # by three in a row
        nows = np.maximum.accumulate(np.concatenate([[self.now_ms], reached]))  # before each record, and at the end
        steps = np.zeros(len(stamps), np.int64)
        steps[known] = np.where(nows[:-1] >= 0, np.diff(nows), 0)
        ahead = int(np.count_nonzero((nows[:-1] >= 0) & (recent[2:] - nows[:-1] > _DAY_MS)))
        before_last, last = (int(stamp) for stamp in recent[-2:])
        return EventTime(int(nows[-1]), last, before_last, self.ahead + ahead), steps

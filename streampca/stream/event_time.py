"""The time of a partition, from the timestamps of its records; no clock is read.

Time never goes backwards, and it only advances to where three records in a row agree that it is: a single record
from the far future is counted, and does not make the model forget everything before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_AHEAD_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class EventTime:
    """The time now, in milliseconds since 1970, and the last two timestamps; -1 when unknown."""

    now_ms: int = -1
    last_ms: int = -1
    before_last_ms: int = -1
    ahead: int = 0  # records more than a day ahead of what was believed when they came

    def advance(self, timestamps: Sequence[int] | NDArray[np.int64]) -> tuple["EventTime", NDArray[np.int64]]:
        """The clock after these records, and the milliseconds by which each of them advanced it."""
        stamps = np.asarray(timestamps, np.int64)
        known = stamps >= 0
        told = np.concatenate([[self.before_last_ms, self.last_ms], stamps[known]])
        believed = np.minimum(np.minimum(told[:-2], told[1:-1]), told[2:])
        nows = np.maximum.accumulate(np.concatenate([[self.now_ms], believed]))  # before each, and at the end
        steps = np.zeros(len(stamps), np.int64)
        steps[known] = np.where(nows[:-1] >= 0, np.diff(nows), 0)
        ahead = int(np.count_nonzero((nows[:-1] >= 0) & (told[2:] - nows[:-1] > _AHEAD_MS)))
        before_last, last = (int(stamp) for stamp in told[-2:])
        return EventTime(int(nows[-1]), last, before_last, self.ahead + ahead), steps

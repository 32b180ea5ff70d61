"""The time of a partition, from the timestamps of its records; no clock is read.

Time never goes backwards, and it only advances to where three records in a row agree that it is: a single record
from the far future is counted, and does not make the model forget everything before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

_AHEAD_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Clock:
    """The time now, in milliseconds since 1970, and the last two timestamps; -1 when unknown."""

    now_ms: int = -1
    last_ms: int = -1
    before_last_ms: int = -1
    ahead: int = 0  # records more than a day ahead of what was believed when they came

    def advance(self, timestamps: Sequence[int]) -> tuple["Clock", NDArray[np.int64]]:
        """The clock after these records, and the milliseconds by which each of them advanced it."""
        now, last, before_last, ahead = self.now_ms, self.last_ms, self.before_last_ms, self.ahead
        steps = np.zeros(len(timestamps), np.int64)
        for i, stamp in enumerate(timestamps):
            if stamp < 0:
                continue
            believed = min(stamp, last, before_last)
            if now >= 0 and stamp > now + _AHEAD_MS:
                ahead += 1
            if believed > now:
                steps[i] = believed - now if now >= 0 else 0
                now = believed
            last, before_last = stamp, last
        return replace(self, now_ms=now, last_ms=last, before_last_ms=before_last, ahead=ahead), steps

"""Which models to delete: history is thinned, not cut, so that the kept ones reach back to the first."""

from collections.abc import Mapping

import numpy as np

_NEWEST = 20  # are always kept


def next_to_go(times: Mapping[int, float], keep: int) -> int | None:
    """The version to delete first if there are more than `keep`; None if there are not. Times rise with the version.

    It is the one whose neighbours are relatively nearest in age, so that the kept ones lie the denser the younger they
    are: never one of the newest `min(20, keep)`, nor the oldest, unless that alone is left.
    """
    if len(times) <= keep:
        return None
    versions = sorted(times, reverse=True)
    ages = np.maximum([times[versions[0]] - times[version] for version in versions], 1e-3)
    first = max(min(_NEWEST, keep), 1)
    ratios = ages[first + 1 :] / ages[first - 1 : -2]
    return versions[first + int(np.argmin(ratios)) if len(ratios) else -1]


def rising(times: Mapping[int, float]) -> dict[int, float]:
    """Times that rise with the version: where a clock was set back, all before is moved back by as much."""
    versions = sorted(times)
    at = np.array([times[version] for version in versions])
    set_back = np.maximum(at[:-1] - at[1:], 0.0)
    at[:-1] -= set_back[::-1].cumsum()[::-1]
    return dict(zip(versions, at.tolist(), strict=True))

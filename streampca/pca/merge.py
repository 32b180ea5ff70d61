"""Merges the states of several streams one by one (docs/mathematics.md, section 7)."""

from typing import Any

from streampca.pca.pooled_rows import MOST_SVD_ROWS
from streampca.pca.pooling import PooledCovariance, pool_groups
from streampca.pca.state import State

FEWEST_GROUPS = 4  # with fewer, their differences say too little about an error
_MOST_GROUPS = 8  # more groups take more time, and hardly improve the estimate of the sampling error


class StateMerger:
    """Merges states one by one, in memory that does not grow with their number.

    There are several groups of states. Each state is pooled with the next group, in turn. From the differences between
    the groups, jackknife.py estimates errors.
    """

    def __init__(self, columns: int) -> None:
        """Prepare the groups of states with up to `columns` axes.

        At the end, the axes and the mean of each group become rows of one matrix, which is decomposed. So there are
        from `FEWEST_GROUPS` to `_MOST_GROUPS` groups: as many as fit into a matrix of `MOST_SVD_ROWS` rows.
        """
        self._columns = columns
        rows_per_group = columns + 1  # one row is for the mean
        groups_that_fit = MOST_SVD_ROWS // rows_per_group
        count = min(_MOST_GROUPS, max(groups_that_fit, FEWEST_GROUPS))
        self._groups = [PooledCovariance(columns) for _ in range(count)]
        self._added_count = 0

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return sum(group.weight for group in self._groups)

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        for group in self._groups:
            group.fade(share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state, with this share of its weight, to the group whose turn it is. A weight of 0 adds nothing."""
        if state.weight * share > 0:
            next_group = self._groups[self._added_count % len(self._groups)]
            next_group.add(state, share)
            self._added_count += 1

    def groups(self) -> list[State]:
        """Return the pooled states of the groups that are not empty, in float64."""
        return [group.pooled_state() for group in self._groups if group.weight > 0]

    def state(self, columns: int, dtype: Any) -> State:
        """Return the merged state, with at most `columns` columns. The weight must not be 0."""
        return pool_groups(self.groups(), self._columns).state(columns, dtype)

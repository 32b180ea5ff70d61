"""Finds names in `field` for which no vector has a number: with missing=impute, a misspelt name is a gap for ever."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streampca.errors import list_names
from streampca.pca.arrays import Array


class SeenNames:
    """The names of dimensions for which any of the vectors so far had a number."""

    def __init__(self, names: Sequence[str] | None) -> None:
        """`names` are those of the dimensions; without names there is nothing to find."""
        self._names = names or ()
        self._is_seen = np.zeros(len(self._names), np.bool_)

    @property
    def has_unseen(self) -> bool:
        """Whether there are names for which no vector had a number."""
        return not self._is_seen.all()

    def add_from(self, V: Array) -> None:
        """Add the names for which one of the vectors V (n, d) has a number."""
        if self.has_unseen:
            self._is_seen |= ~np.isnan(V).all(axis=0)

    def describe_unseen(self, what_was_read: str) -> str:
        """Say for which names none of the vectors so far has a number. See the function `describe_unseen`."""
        return describe_unseen(self._names, self._is_seen, what_was_read)


def describe_unseen(names: Sequence[str] | None, is_seen_by_dimension: NDArray[np.bool_], what_was_read: str) -> str:
    """Say for which names of dimensions no vector has a number; "" if there is no such name, or no vector.

    `is_seen_by_dimension` (d,) marks the dimensions in which a vector has a number. `names` is None if the dimensions
    have no names. `what_was_read` is what the returned text calls the vectors, such as "the first records".
    """
    has_vectors = is_seen_by_dimension.any()  # each vector has at least one number
    if not names or not has_vectors:
        return ""
    unseen = [name for name, seen in zip(names, is_seen_by_dimension, strict=True) if not seen]
    if not unseen:
        return ""
    return f"none of {what_was_read} has a number at {list_names(unseen)}: correct field if a name is misspelt"

"""Says which vectors may be learned, and why a vector may not. Records, files and arrays have the same judge."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.formats.errors import SKIP_REASONS, missing_hint
from streampca.formats.record import Decoded, Reject
from streampca.pca.arrays import Array, find_unusable_entries
from streampca.pca.missing_values import NO_MISSING_VALUES, MissingValues

if TYPE_CHECKING:  # transform judges what it does not learn, and need not wait for what learning imports
    from streampca.pca.learning import LearningConfig

_LARGEST_PROJECTED = 1e150  # its square is finite


class BadVector(NamedTuple):
    """The first bad vector of several."""

    row: int
    reason: str  # its short name
    message: str


@dataclass(frozen=True)
class Judge:
    """A vector is good if it has d finite numbers, each of at most `largest_value`.

    With `min_observed`, numbers may be missing (NaN).
    """

    dimensions: int
    largest_value: float
    dtype: str = "float64"  # in which vectors are learned
    min_observed: int | None = None  # entries that must not be missing (NaN); None: no entry may be missing
    missing_values: MissingValues = NO_MISSING_VALUES

    @classmethod
    def of(cls, config: "LearningConfig") -> "Judge":
        """Create the judge of vectors that are learned."""
        return cls(
            dimensions=config.dimensions,
            largest_value=config.largest_value,
            dtype=config.dtype,
            min_observed=config.min_observed if config.impute else None,
            missing_values=MissingValues.of(config.missing_values, config.dtype),
        )

    @classmethod
    def of_projected(
        cls,
        dimensions: int,
        dtype: str = "float64",
        *,
        impute: bool = False,
        missing_values: MissingValues = NO_MISSING_VALUES,
    ) -> "Judge":
        """Create the judge of vectors that are only projected. With `impute`, one entry of a vector is enough."""
        min_observed = 1 if impute else None
        return cls(dimensions, _LARGEST_PROJECTED, dtype, min_observed, missing_values)

    @property
    def imputes(self) -> bool:
        """Whether entries may be missing."""
        return self.min_observed is not None

    @property
    def _min_observed_entries(self) -> int:
        """Number of entries that must not be missing: all d without `min_observed`."""
        return self.dimensions if self.min_observed is None else self.min_observed

    @np.errstate(invalid="ignore")  # signalling NaNs would warn
    def reject_bad(
        self, vectors: Array, indices: NDArray[np.int64], counts: NDArray[np.int64], rejects: list[Reject]
    ) -> Decoded:
        """Reject the values of a batch that hold a bad vector, and return the vectors of all other values.

        `vectors` (n, d) come from m values: `indices` (m,) are the places of these values in the batch, and `counts`
        (m,) say how many vectors each holds. For example, if the first of three values could not be read, the second
        holds one vector and the third holds two, `indices` is [1, 2] and `counts` is [1, 2].

        `rejects` has the values that could not be read; this list grows. Rejects with a reason of `SKIP_REASONS` become
        `Decoded.skipped`.
        """
        given_vectors = vectors
        vectors = self.missing_values.to_nan(given_vectors)
        # A fast test of the whole batch. False says only that each vector must be looked at.
        if not self._are_surely_good(vectors):
            if self.imputes:
                # NaN has many bit patterns. With a single one, equal vectors are learned to equal bits.
                vectors = np.where(np.isnan(vectors), np.nan, vectors)
            # The index of each vector's value among the m values; for the counts [1, 2]: [0, 1, 1].
            value_index_of_vector = np.repeat(np.arange(len(counts)), counts)
            bad_vectors = np.flatnonzero(~self._are_good(vectors))
            value_index_of_bad_vector = value_index_of_vector[bad_vectors]
            # A value is rejected for its first bad vector: `unique` also returns where each index first occurs.
            bad_value_indices, first_occurrences = np.unique(value_index_of_bad_vector, return_index=True)
            first_bad_vectors = bad_vectors[first_occurrences]
            for value_index, row in zip(bad_value_indices, first_bad_vectors, strict=True):
                reason, message = self._why_bad(vectors[row], given=given_vectors[row])
                rejects.append(Reject(int(indices[value_index]), reason, message))
            vectors = vectors[~np.isin(value_index_of_vector, bad_value_indices)]
            counts = counts.copy()
            counts[bad_value_indices] = 0
        holds_vectors = counts > 0
        return Decoded(
            vectors=vectors.astype(self.dtype, copy=False),
            indices=indices[holds_vectors],
            rejects=sorted(reject for reject in rejects if reject.reason not in SKIP_REASONS),
            counts=counts[holds_vectors],
            skipped=[reject for reject in rejects if reject.reason in SKIP_REASONS],
        )

    def first_bad(self, vectors: Array) -> BadVector | None:
        """Find the first bad vector in (n, d); None if all are good."""
        if self._are_surely_good(vectors):
            return None
        is_good = self._are_good(vectors)
        if is_good.all():
            return None
        row = int(is_good.argmin())  # the first False
        # Unlike in `reject_bad`, no entry was replaced by NaN, so `given` is the same vector.
        reason, message = self._why_bad(vectors[row], given=vectors[row])
        return BadVector(row, reason, message)

    @np.errstate(invalid="ignore")  # signalling NaNs would warn
    def _are_surely_good(self, vectors: Array) -> bool:
        """Test quickly whether all vectors (n, d) are good. If this returns False, they may still be good.

        If the sum of all squares is small, no entry is large. A NaN or an infinity makes the sum NaN or infinite.
        """
        sum_of_squares = np.vdot(vectors, vectors)
        limit = np.float64(self.largest_value) ** 2
        return bool(sum_of_squares <= limit / 2)  # half, because the sum is rounded

    def _are_good(self, vectors: Array) -> NDArray[np.bool_]:
        """Return for each of the vectors (n, d) whether it has enough entries, all finite and small enough; (n,)."""
        is_missing = np.isnan(vectors)
        observed_entries = self.dimensions - is_missing.sum(axis=1)
        has_enough = observed_entries >= self._min_observed_entries
        magnitudes = np.abs(vectors)
        magnitudes[is_missing] = 0.0
        limit = np.float64(self.largest_value)  # a Python float would be rounded to the type of the vectors
        # Infinity is over the limit, too, so finiteness needs no test of its own.
        is_small = magnitudes.max(axis=1, initial=0.0) <= limit
        return np.asarray(is_small & has_enough)

    def _why_bad(self, vector: Array, given: Array) -> tuple[str, str]:
        """Explain why a vector (d,) is bad: the short name of the reason, and a message.

        `given` (d,) is the vector as it was before missing values became NaN.
        """
        place = first_not_finite(vector[None], impute=self.imputes)  # as an array of one row
        if place is not None:
            _, entry = place
            hint = missing_hint(given[entry]) if np.isnan(vector[entry]) else ""
            return "not_finite", f"entry {entry} is {given[entry]}{hint}"
        observed = self.dimensions - int(np.isnan(vector).sum())
        needed = self._min_observed_entries
        if observed < needed:
            text = f"{observed} of {self.dimensions} entries are there, at least {needed} are needed"
            return "too_few_observed", text
        entry = int(np.nanargmax(np.abs(vector)))
        return "too_large", (
            f"entry {entry} is {vector[entry]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )


def first_not_finite(V: Array, *, impute: bool) -> tuple[int, int] | None:
    """Find the first entry of vectors (n, d) that is infinite or, without `impute`, NaN. Return its row and its column.

    If all entries can be used, returns None.
    """
    is_unusable = find_unusable_entries(V, impute=impute)
    if not is_unusable.any():
        return None
    row, column = np.argwhere(is_unusable)[0].tolist()
    return row, column

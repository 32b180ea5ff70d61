"""Says which vectors may be learned, and why a vector may not. Records, files and arrays have the same judge."""

from collections.abc import Iterator
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

_LARGEST_PROJECTED_VALUE = 1e150  # of an entry of a vector that is only projected: its square is finite


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
        """Create the judge of vectors that are only projected.

        With `impute`, all entries of a vector but one may be missing. Without `impute`, no entry may be missing.
        """
        return cls(
            dimensions=dimensions,
            largest_value=_LARGEST_PROJECTED_VALUE,
            dtype=dtype,
            min_observed=1 if impute else None,  # None: no entry may be missing
            missing_values=missing_values,
        )

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
        self, vectors: Array, indices: NDArray[np.int64], counts: NDArray[np.int64], earlier_rejects: list[Reject]
    ) -> Decoded:
        """Reject the values that hold a bad vector, and return the vectors of all other values.

        `vectors` (n, d) were decoded from m values of a batch: value i holds `counts[i]` vectors, and its index in the
        batch is `indices[i]`. `earlier_rejects` are values that could not be decoded, or are skipped.
        """
        checked = self.missing_values.to_nan(vectors)
        all_rejects = list(earlier_rejects)
        is_kept = counts > 0  # (m,), whether value i has vectors, none of them bad
        # A quick test of all vectors together is enough in most batches. If the test fails, each vector is tested.
        if not self._are_surely_good(checked):
            if self.imputes:
                # Vectors with NaN always come here, because NaN fails the quick test. NaN has many bit patterns. All
                # get the same, so that equal vectors have equal bits.
                checked = np.where(np.isnan(checked), np.nan, checked)
            for i, row in self._find_bad_values(checked, counts):  # `row` is the first bad vector of value i
                reason, message = self._why_bad(checked[row], original=vectors[row])
                all_rejects.append(Reject(int(indices[i]), reason, message))
                is_kept[i] = False
        decoded = Decoded(
            vectors=checked,
            indices=indices,
            rejects=sorted(reject for reject in all_rejects if reject.reason not in SKIP_REASONS),
            counts=counts,
            skipped=[reject for reject in earlier_rejects if reject.reason in SKIP_REASONS],  # none was added above
        ).keep_values(is_kept)
        return decoded._replace(vectors=decoded.vectors.astype(self.dtype, copy=False))

    def _find_bad_values(self, vectors: Array, counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield the index of each value that holds a bad vector, and the row of its first bad vector.

        `counts` (m,) are the numbers of vectors in m values.
        """
        value_of_vector = np.repeat(np.arange(len(counts)), counts)
        bad_rows = np.flatnonzero(~self._are_good(vectors))
        bad_values, first_occurrences = np.unique(value_of_vector[bad_rows], return_index=True)
        return zip(bad_values.tolist(), bad_rows[first_occurrences].tolist(), strict=True)

    def first_bad(self, vectors: Array) -> BadVector | None:
        """Find the first bad vector of vectors (n, d) with NaN for missing values; None if all are good."""
        if self._are_surely_good(vectors):
            return None
        is_good = self._are_good(vectors)
        if is_good.all():
            return None
        row = int(is_good.argmin())  # the first False
        vector = vectors[row]
        # `original` is the vector before codes for missing values became NaN. Here, there are no codes.
        reason, message = self._why_bad(vector, original=vector)
        return BadVector(row, reason, message)

    @np.errstate(invalid="ignore")  # signalling NaNs would warn
    def _are_surely_good(self, vectors: Array) -> bool:
        """Return True only if all vectors (n, d) are good; they may still be good if False."""
        sum_of_squares = np.vdot(vectors, vectors)  # not finite if any number is not finite
        limit = np.float64(self.largest_value) ** 2
        return bool(sum_of_squares <= limit / 2)  # half, because the sum is rounded

    def _are_good(self, vectors: Array) -> NDArray[np.bool_]:
        """Return which of the vectors (n, d) are good, (n,)."""
        is_missing = np.isnan(vectors)
        observed_entries = self.dimensions - is_missing.sum(axis=1)
        has_enough = observed_entries >= self._min_observed_entries
        magnitudes = np.abs(vectors)
        magnitudes[is_missing] = 0.0
        limit = np.float64(self.largest_value)  # a Python float would be rounded to the type of the vectors
        # Infinity exceeds the limit, too.
        is_small = magnitudes.max(axis=1, initial=0.0) <= limit
        return np.asarray(is_small & has_enough)

    def _why_bad(self, vector: Array, original: Array) -> tuple[str, str]:
        """Explain why a vector (d,) is bad: the short name of the reason, and a message.

        `original` is the vector as it was decoded, before codes for missing values, such as −999, became NaN.
        """
        row_and_entry = first_not_finite(vector[None], impute=self.imputes)
        if row_and_entry is not None:
            _, entry = row_and_entry
            hint = missing_hint(original[entry]) if np.isnan(vector[entry]) else ""
            return "not_finite", f"entry {entry} is {original[entry]}{hint}"
        observed = self.dimensions - int(np.isnan(vector).sum())
        needed = self._min_observed_entries
        if observed < needed:
            text = f"{observed} of {self.dimensions} entries are there, at least {needed} are needed"
            return "too_few_observed", text
        entry = int(np.nanargmax(np.abs(vector)))  # the only reason left: it is too large
        return "too_large", (
            f"entry {entry} is {vector[entry]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )


def first_not_finite(V: Array, *, impute: bool) -> tuple[int, int] | None:
    """Return the row and column of the first entry of vectors (n, d) that is infinite or, without `impute`, NaN.

    If all entries can be used, returns None.
    """
    is_unusable = find_unusable_entries(V, impute=impute)
    if not is_unusable.any():
        return None
    row, column = np.argwhere(is_unusable)[0].tolist()
    return row, column

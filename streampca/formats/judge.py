"""Says which vectors may be learned, and why others may not: the one judge of records, files and arrays."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streampca.formats.errors import NO_VALUE, NULL_HINT
from streampca.formats.record import Decoded, Reject
from streampca.pca.arrays import Array, not_finite

if TYPE_CHECKING:  # transform judges what it does not learn, and need not wait for what learning imports
    from streampca.pca.learning import LearningConfig

_LARGEST_PROJECTED = 1e150  # its square is finite


@dataclass(frozen=True)
class Judge:
    """A vector must have d finite numbers, none of them larger than `largest_value`."""

    dimensions: int
    largest_value: float
    dtype: str = "float64"  # in which vectors are learned
    min_observed: int | None = None  # entries that are not missing, which is NaN; None: incomplete vectors are refused

    @classmethod
    def of(cls, config: "LearningConfig") -> "Judge":
        observed = config.min_observed if config.impute else None
        return cls(config.dimensions, config.largest_value, config.dtype, observed)

    @classmethod
    def of_projected(cls, dimensions: int, dtype: str = "float64", *, impute: bool = False) -> "Judge":
        """The judge of vectors that are projected and not learned: with `impute` one entry of each is enough."""
        return cls(dimensions, _LARGEST_PROJECTED, dtype, 1 if impute else None)

    @np.errstate(invalid="ignore")  # signalling NaNs would warn
    def checked(
        self, vectors: Array, indices: NDArray[np.int64], counts: NDArray[np.int64], rejects: list[Reject]
    ) -> Decoded:
        """Move the bad ones of decoded vectors (n, d) to the rejects; those with the reason "no_value" are no rejects.

        `indices` (m,) and `counts` (m,) say which values the vectors come from.
        """
        if not self._are_surely_good(vectors):
            if self.min_observed is not None:
                vectors = np.where(np.isnan(vectors), np.nan, vectors)  # one NaN of the many, for the same bits
            good = self.good(vectors)
            values = np.repeat(np.arange(len(indices)), counts)  # the value of each vector
            bad, first = np.unique(values[~good], return_index=True)
            rows = np.flatnonzero(~good)[first]
            rejects += [Reject(int(indices[v]), *self.reason(vectors[i])) for v, i in zip(bad, rows, strict=True)]
            counts = np.where(np.isin(np.arange(len(indices)), bad), 0, counts)
            vectors = vectors[~np.isin(values, bad)]
        vectors = vectors.astype(self.dtype, copy=False)
        skipped = [reject.index for reject in rejects if reject.reason == NO_VALUE]
        rejects = sorted(reject for reject in rejects if reject.reason != NO_VALUE)
        return Decoded(vectors, indices[counts > 0], rejects, counts[counts > 0], skipped)

    def first_bad(self, vectors: Array) -> tuple[int, str, str] | None:
        """Find the first vector of (n, d) that is not good: its row, the short name of the reason, and a message."""
        if self._are_surely_good(vectors) or (good := self.good(vectors)).all():
            return None
        row = int(good.argmin())
        return row, *self.reason(vectors[row])

    @np.errstate(invalid="ignore")  # signalling NaNs would warn
    def _are_surely_good(self, vectors: Array) -> bool:
        """Say so quickly for ordinary vectors: no square is NaN or large. Half, because sums are rounded."""
        return bool(np.vdot(vectors, vectors) <= np.float64(self.largest_value) ** 2 / 2)

    def good(self, vectors: Array) -> NDArray[np.bool_]:
        """Find vectors (n, d) with enough entries, all finite and small enough; (n,)."""
        sizes, observed = np.abs(vectors), self.dimensions
        if self.min_observed is not None:
            missing = np.isnan(vectors)
            sizes[missing], observed = 0.0, self.dimensions - missing.sum(axis=1)
        small = sizes.max(axis=1, initial=0.0) <= np.float64(self.largest_value)  # false for NaN
        return np.asarray(small & (observed >= (self.min_observed or 0)))

    def reason(self, vector: Array) -> tuple[str, str]:
        """Explain why a vector (d,) is not good: the short name and a message."""
        missing = np.isnan(vector)
        bad = first_not_finite(vector[None], impute=self.min_observed is not None)
        if bad is not None:
            _, entry = bad
            return "not_finite", f"entry {entry} is {vector[entry]}{NULL_HINT if missing[entry] else ''}"
        if (observed := self.dimensions - int(missing.sum())) < (self.min_observed or 0):
            text = f"{observed} of {self.dimensions} entries are there, at least {self.min_observed} are needed"
            return "too_few_observed", text
        entry = int(np.nanargmax(np.abs(vector)))
        return "too_large", (
            f"entry {entry} is {vector[entry]:g}; beyond ±{self.largest_value:g} squares overflow {self.dtype}"
        )


def first_not_finite(V: Array, *, impute: bool) -> tuple[int, int] | None:
    """Find the first entry of (n, d) that can be neither learned nor projected: its row and its column."""
    bad = not_finite(V, impute=impute)
    if not bad.any():
        return None
    row, column = np.argwhere(bad)[0].tolist()
    return row, column

"""Numbers that mean "missing", such as −9999, which some producers write instead of NaN."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from streampca.pca.arrays import Array


class MissingValues(NamedTuple):
    """The numbers that mean "missing" in the vectors of a model."""

    numbers: tuple[float, ...] = ()
    dtype: str = "float64"  # of the model

    @classmethod
    def of(cls, text: str, dtype: str) -> Self:
        """Read the numbers in a text that `normalize_missing_values` returned. `dtype` is the type of the model."""
        words = text.split(",") if text else []
        return cls(tuple(float(word) for word in words), dtype)

    def rounded_to(self, precision: np.dtype[Any]) -> Array:
        """Return the numbers in this precision, without those that would be rounded to infinity."""
        with np.errstate(over="ignore"):
            rounded: Array = np.array(self.numbers).astype(precision)
        return rounded[np.isfinite(rounded)]

    def to_nan(self, V: Array) -> Array:
        """Return the vectors V (n, d) with NaN in place of each entry that is one of `numbers`.

        An entry also counts if it equals a number after both are rounded to the type of V or of the model, whichever is
        less precise.
        """
        if not self.numbers:
            return V
        lower_precision = min(V.dtype, np.dtype(self.dtype), key=lambda dtype: dtype.itemsize)
        with np.errstate(over="ignore", invalid="ignore"):  # large numbers, signalling NaNs
            rounded_vectors = V.astype(lower_precision)
            is_missing = np.isin(V, self.numbers) | np.isin(rounded_vectors, self.rounded_to(lower_precision))
        if not is_missing.any():
            return V
        with_gaps = V.copy()
        with_gaps[is_missing] = np.nan
        return with_gaps


NO_MISSING_VALUES = MissingValues()


def normalize_missing_values(given: str | float | Sequence[float] | None) -> str:
    """Return the numbers that mean "missing" as a text with commas, in ascending order.

    Leaves out NaN. Raises `ValueError` for anything that is not a number.
    """
    words: Sequence[str | float]
    if isinstance(given, str):
        words = [word.strip() for word in given.split(",")] if given.strip() else []
    else:
        words = [] if given is None else np.ravel(given).tolist()
    numbers = {_to_float(word) for word in words}
    ascending = sorted(number for number in numbers if not np.isnan(number))
    return ", ".join(repr(number).removesuffix(".0") for number in ascending)


def _to_float(word: str | float) -> float:
    """Return a word as a number. Raises `ValueError` if it is not a number."""
    try:
        if isinstance(word, bool):
            raise TypeError
        return float(word) + 0.0  # turns −0 into 0
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{word!r} is not a number: write numbers with commas between, such as -200, -9999") from None

"""The parameters of a model, and what follows from them: number of columns, sizes of blocks, and limits of numbers."""

import math
from dataclasses import dataclass

import numpy as np

from streampca.pca.blocked import ritz

LARGEST_COVARIANCE = 768  # dimensions up to which Σ is kept
F_COLUMNS_WITH_COVARIANCE = 10  # columns of F if Σ is kept; measured, see docs/mathematics.md
BASE_F_COLUMNS_WITHOUT_COVARIANCE = 40  # if Σ is not kept, F has these columns and more; measured, see there
YOUNG_WEIGHT = 4096  # messages after the first block: a younger stream needs the latest axes more than speed
OLD_WEIGHT = 2**15  # number of messages from which a stream may have the longest blocks
SHORT_BLOCK = 256  # messages in a block of a young stream
LONG_BLOCK = 1024  # messages in a block of a stream that is not young
LONGEST_BLOCK = 2048  # messages in a block of an old stream, if its vectors are short or its columns many
_SHORT_VECTOR_BYTES = 3072  # up to this size, a longest block takes no more memory than a long block of 768 doubles
_MANY_COLUMNS = 512  # with so many columns, decomposing them takes longer than learning a block


@dataclass(frozen=True)
class LearningConfig:
    """The parameters of a model, apart from the data."""

    dimensions: int  # d
    components: int  # k, the components of the served model
    oversampling: int | None = None  # columns of F; None: 10 if Σ is kept, otherwise 40 + max(10, 3k/5)
    center: bool = True
    dtype: str = "float64"
    warm_up: int | None = None  # messages in the first block; None: max(200, 2k)
    impute: bool = False  # whether messages may lack entries, which are NaN
    missing_values: str = ""  # numbers that are read as NaN, with commas between
    standardize: bool = False  # whether to learn D(v − m), D = 1/standard deviation of each entry so far
    factor: bool = False  # never keep Σ: for tests and experiments in few dimensions; not a setting

    def __post_init__(self) -> None:
        if self.standardize and not self.center:
            raise ValueError("standardize divides by standard deviations about the mean, so center must be true")

    @property
    def keeps_covariance(self) -> bool:
        """Whether Σ is kept: up to 768 dimensions, or if [C | F] would have a column for each dimension."""
        return not self.factor and self.dimensions <= max(
            LARGEST_COVARIANCE, self.components + self._f_columns_without_covariance
        )

    @property
    def columns(self) -> int:
        """The most columns that a state may have: k in C and `oversampling` in F, together at most d.

        By default, F has fewer columns if the state also keeps the covariance Σ.
        """
        f_columns = self.oversampling
        if f_columns is None:
            f_columns = F_COLUMNS_WITH_COVARIANCE if self.keeps_covariance else self._f_columns_without_covariance
        return min(self.components + f_columns, self.dimensions)

    @property
    def _f_columns_without_covariance(self) -> int:
        """The number of columns of F if Σ is not kept; measured."""
        return BASE_F_COLUMNS_WITHOUT_COVARIANCE + max(10, 3 * self.components // 5)

    @property
    def limits(self) -> ritz.Limits:
        """Which axes become columns of [C | F]."""
        return ritz.Limits(
            columns=self.columns, smallest_variance_share=self.rounding, smallest_deviation=self.smallest_value
        )

    @property
    def first_block_size(self) -> int:
        """The number of messages in the first block."""
        return max(200, 2 * self.components) if self.warm_up is None else self.warm_up

    @property
    def largest_value(self) -> float:
        """The largest entry that a vector may have: sums of larger squares over a block would overflow."""
        return float(np.sqrt(np.finfo(self.dtype).max / (2**14 * self.dimensions)))

    @property
    def smallest_value(self) -> float:
        """The smallest deviation that counts: squares of smaller numbers would underflow."""
        margin = 16  # so that even a 256th of a square does not underflow
        return margin * float(np.sqrt(np.finfo(self.dtype).tiny))

    @property
    def min_observed(self) -> int:
        """The smallest number of entries that an incomplete message may have.

        With fewer entries than 2k or 30 % of d, it would be better to fill the missing entries with their means than
        to predict them.
        """
        return min(max(2 * self.components, math.ceil(0.3 * self.dimensions)), self.dimensions)

    def next_block_size(self, weight: float) -> int:
        """Return the number of messages in the block that follows messages of this weight.

        A young stream has short blocks, because its axes still change much. Longer blocks save decompositions. An old
        stream has the longest blocks in two cases: its vectors are short, and a block takes little memory; or [C | F]
        has many columns, and a decomposition takes long.
        """
        is_first_block = not weight
        if is_first_block:
            return max(self.first_block_size, 1)
        if weight < self.first_block_size + YOUNG_WEIGHT:
            return SHORT_BLOCK
        vector_bytes = self.dimensions * np.dtype(self.dtype).itemsize
        has_short_vectors = vector_bytes <= _SHORT_VECTOR_BYTES
        has_many_columns = self.columns >= _MANY_COLUMNS  # decomposing them takes long
        if weight >= OLD_WEIGHT and (has_short_vectors or has_many_columns):
            return LONGEST_BLOCK
        return LONG_BLOCK

    @property
    def rounding(self) -> float:
        """The share of the largest variance below which a variance is a rounding error."""
        return 1e-7 if self.dtype == "float32" else 1e-13

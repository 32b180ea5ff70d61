"""Which fields outputs have, and their values: projected vectors.

The result for a record must not depend on the batch that it came in, and BLAS may round a row differently for another
number of rows, or at another index. So rows are computed in blocks of a fixed height, and the offset of a record
decides at which index of a block its row is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields, Kind, Layout
from streampca.pca.arrays import Array
from streampca.pca.model import Basis, Projected
from streampca.pca.projection import GEMM_ROWS, multiply_in_blocks, place_at_indices

_KINDS: Mapping[str, Kind] = {"coordinates": "numbers", "reconstruction": "numbers", "record": "bytes"}


@dataclass(frozen=True)
class OutputFields:
    """The fields of outputs, and how they are computed from vectors, in float64."""

    emitted: tuple[str, ...]
    basis: Basis = "principal"
    with_p: bool = False  # p is computed even if it is not emitted
    named: bool = False  # contributions come with the names of their dimensions

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Name of each field of an output → what it holds. The field `record` is not computed from vectors."""
        kinds: dict[str, Kind] = {}
        for name in self.emitted:
            if name.startswith("contributions:"):
                for score in ("t2", "spe"):
                    kinds |= {f"{score}_dimensions": "integers", f"{score}_contributions": "numbers"}
                    if self.named:
                        kinds[f"{score}_names"] = "texts"
            else:
                kinds[name] = _KINDS.get(name, "number")
        return kinds

    @property
    def layout(self) -> Layout:
        return Layout(self.kinds, record="Projection")

    @property
    def needs_past_scores(self) -> bool:
        """Whether the model must have past scores, since p-values are computed from them."""
        return self.with_p or "p" in self.emitted

    def project(
        self, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64], counts: NDArray[np.int64],
        in_batches: NDArray[np.bool_],
    ) -> Fields:  # fmt: skip
        """Return the fields of the vectors (n, d) of m records, n > 0.

        The records have ascending `offsets` (m,), and `counts` (m,) are their numbers of vectors. Where `in_batches`
        (m,) is true, the value of a record is a batch, and its vectors have blocks of their own. Any other record has
        one vector, and shares a block with the records of near offsets.
        """
        has_all_offsets = offsets[-1] - offsets[0] == len(vectors) - 1
        if has_all_offsets and not in_batches.any():
            return self._project_consecutive(published, vectors, int(offsets[0]))
        return self._project_at(published, vectors, _indices_in_blocks(offsets, counts, in_batches))

    def _project_consecutive(self, published: PublishedModel, vectors: Array, offset: int) -> Fields:
        """Return the fields of vectors at consecutive offsets. An optimisation: whole blocks are not copied."""
        n = len(vectors)
        first = offset % GEMM_ROWS
        end_of_first_block = min(-first % GEMM_ROWS, n)
        begin_of_last_block = max(end_of_first_block, n - (first + n) % GEMM_ROWS)
        bounds = [0, end_of_first_block, begin_of_last_block, n]
        runs = [(i, j) for i, j in pairwise(bounds) if i < j]
        return _join([self._project_run(published, vectors[i:j], (first + i) % GEMM_ROWS) for i, j in runs])

    def _project_run(self, published: PublishedModel, vectors: Array, start: int) -> Fields:
        """Return the fields of vectors whose rows follow each other from the index `start` of a block on."""
        if start == 0 and len(vectors) % GEMM_ROWS == 0:
            return self._compute(published, vectors)
        return self._project_at(published, vectors, np.arange(start, start + len(vectors)))

    def _project_at(self, published: PublishedModel, vectors: Array, indices: NDArray[np.int64]) -> Fields:
        """Return the fields of vectors, computed at these indices of rows (n,), counted over all blocks."""
        fields = self._compute(published, place_at_indices(vectors, indices))
        return {name: values[indices] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, rows: Array) -> Fields:
        """Return the fields of rows (n, d), which fill blocks."""
        projected = published.project(rows)
        model = published.model
        compute: dict[str, Callable[[], Array]] = {
            "coordinates": lambda: projected.in_basis(self.basis),
            "residual": lambda: projected.residual,
            "score": lambda: projected.scores.score,
            "p": lambda: np.full(len(rows), np.nan) if projected.p is None else projected.p,
            "reconstruction": lambda: model.uncentre(multiply_in_blocks(projected.coordinates, model.components)),
        }
        # The values of `compute` are functions, so that only the fields that are needed are computed.
        names = (*self.emitted, "p") if self.needs_past_scores else self.emitted
        fields = {name: compute[name]().astype(np.float64, copy=False) for name in names if name in compute}
        dimension_names = None
        if self.named:  # a model without names gets numbers as names, since the schema of the outputs has names
            dimension_names = published.names or list(map(str, range(model.dimensions)))
        limits = [int(name.removeprefix("contributions:")) for name in names if name.startswith("contributions:")]
        for limit in limits:
            fields |= _contributions(projected, min(limit, model.dimensions), dimension_names)
        return fields


def _indices_in_blocks(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], in_batches: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the indices of the rows (n,) of all vectors, counted over all blocks; see `OutputFields.project`."""
    at = np.where(in_batches, 0, offsets % GEMM_ROWS)  # index of a record's first row in its block
    heights = GEMM_ROWS * np.where(in_batches, -(-counts // GEMM_ROWS), 1)  # rows of the blocks of a record
    shared_block = np.where(in_batches, -1, offsets - at)  # the first offset of the block; -1: it is not shared
    begins_block = in_batches | (np.diff(shared_block, prepend=-1) != 0)
    first_rows = np.cumsum(heights * begins_block) - heights + at
    first_vectors = np.cumsum(counts) - counts
    within_record = np.arange(counts.sum()) - np.repeat(first_vectors, counts)
    return np.asarray(np.repeat(first_rows, counts) + within_record)


def _contributions(projected: Projected, limit: int, names: Sequence[str] | None) -> Fields:
    """Return the dimensions that contribute most to T² and to SPE, what they contribute, and their names, if any."""
    fields: dict[str, NDArray[Any]] = {}
    which, values = projected.contributions(limit)
    for score, dimensions, contributions in zip(values._fields, which, values, strict=True):
        fields[f"{score}_dimensions"] = dimensions
        fields[f"{score}_contributions"] = contributions.astype(np.float64, copy=False)
        if names:
            fields[f"{score}_names"] = np.array(names, object)[dimensions]
    return fields


def _join(runs: list[Fields]) -> Fields:
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

"""Which fields outputs have, and their values: projected vectors.

The result for a record must not depend on the batch that it came in, and BLAS may round a row differently for another
number of rows, or at another index. So rows are computed in blocks of a fixed height, and the offset of a record
decides at which index of a block its row is.
"""

from collections.abc import Mapping
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

    emitted: tuple[str, ...]  # the setting `emit`: names of fields, and "contributions:N" for several fields
    basis: Basis = "principal"
    with_p: bool = False  # p is computed even if it is not emitted
    with_label: bool = False  # contributions come with the label of the record
    with_names: bool = False  # contributions come with the names of their dimensions

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Name of each field of an output → what it holds."""
        kinds: dict[str, Kind] = {}
        for name in self.emitted:
            if name.startswith("contributions:"):
                for score in ("t2", "spe"):
                    kinds |= {f"{score}_dimensions": "integers", f"{score}_contributions": "numbers"}
                    if self.with_names:
                        kinds[f"{score}_names"] = "texts"
                if self.with_label:
                    kinds["label"] = "text"
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

        Each record has an offset in `offsets` (m,), which ascend, and a number of vectors in `counts` (m,). Where
        `in_batches` (m,) is true, the value of the record is a batch, and its vectors have blocks of their own. Any
        other record has one vector, and shares a block with the records of near offsets.
        """
        are_consecutive = offsets[-1] - offsets[0] == len(offsets) - 1
        if are_consecutive and not in_batches.any():
            return self._project_consecutive(published, vectors, int(offsets[0]))
        return self._project_at(published, vectors, _find_rows_in_blocks(offsets, counts, in_batches))

    def _project_consecutive(self, published: PublishedModel, vectors: Array, offset: int) -> Fields:
        """Return the fields of vectors at consecutive offsets, the first at `offset`.

        This is an optimisation: unlike `_project_at`, it does not copy the vectors of whole blocks.
        """
        n = len(vectors)
        row_of_first = offset % GEMM_ROWS  # in its block
        row_after_last = (row_of_first + n) % GEMM_ROWS
        # For example, with blocks of 4 rows: of the offsets 6 to 16, 6 and 7 end a block, 8 to 15 fill two blocks, and
        # 16 begins a block. Each of these three parts may be empty.
        whole_start = min(-row_of_first % GEMM_ROWS, n)  # index of the first vector at row 0 of a block
        whole_stop = max(whole_start, n - row_after_last)  # index behind the last row of a whole block
        runs = []
        for start, stop in pairwise([0, whole_start, whole_stop, n]):
            if start < stop:
                runs.append(self._project_run(published, vectors[start:stop], (row_of_first + start) % GEMM_ROWS))
        return _join(runs)

    def _project_run(self, published: PublishedModel, vectors: Array, row: int) -> Fields:
        """Return the fields of vectors that are in consecutive rows, the first at this row of a block."""
        are_whole_blocks = row == 0 and len(vectors) % GEMM_ROWS == 0
        if are_whole_blocks:
            return self._compute(published, vectors)
        return self._project_at(published, vectors, np.arange(row, row + len(vectors)))

    def _project_at(self, published: PublishedModel, vectors: Array, rows: NDArray[np.int64]) -> Fields:
        """Return the fields of vectors, each computed at its row in `rows` (n,), counted over all blocks."""
        fields = self._compute(published, place_at_indices(vectors, rows))
        return {name: values[rows] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, blocks: Array) -> Fields:
        """Return the fields of the vectors (n, d) in one or more whole blocks."""
        projected = published.project(blocks)
        fields: dict[str, NDArray[Any]] = {}
        computed = list(self.emitted)
        if self.with_p and "p" not in computed:
            computed.append("p")
        for name in computed:
            if name.startswith("contributions:"):
                limit = int(name.removeprefix("contributions:"))
                fields |= self._compute_contributions(published, projected, limit)
            elif name != "record":  # the value of the input record, which `Outputs` adds
                fields[name] = self._compute_field(name, projected).astype(np.float64, copy=False)
        return fields

    def _compute_field(self, name: str, projected: Projected) -> Array:
        """Return the values of the field with this name. Without past scores, all p are NaN."""
        match name:
            case "coordinates":
                return projected.in_basis(self.basis)
            case "residual":
                return projected.residual
            case "score":
                return projected.scores.score
            case "p":
                return np.full(len(projected.vectors), np.nan) if projected.p is None else projected.p
            case "reconstruction":
                model = projected.model
                return model.uncentre(multiply_in_blocks(projected.coordinates, model.components))
        raise ValueError(f"outputs have no field {name}")

    def _compute_contributions(self, published: PublishedModel, projected: Projected, limit: int) -> Fields:
        """Return the `limit` dimensions that contribute most to T² and to SPE, and what they contribute.

        If outputs have names of dimensions, these are returned, too.
        """
        d = published.model.dimensions
        names = None
        if self.with_names:  # if the model has no names, they are numbers: the schema of the outputs needs names
            names = np.array(published.names or [str(i) for i in range(d)], object)
        fields: dict[str, NDArray[Any]] = {}
        (t2_dimensions, spe_dimensions), largest = projected.contributions(min(limit, d))
        for score, indices, contributions in (("t2", t2_dimensions, largest.t2), ("spe", spe_dimensions, largest.spe)):
            fields[f"{score}_dimensions"] = indices
            fields[f"{score}_contributions"] = contributions.astype(np.float64, copy=False)
            if names is not None:
                fields[f"{score}_names"] = names[indices]
        return fields


def _find_rows_in_blocks(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], in_batches: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row (n,) of each vector, counted over all blocks. The arguments are those of `OutputFields.project`.

    For example, let blocks have 4 rows, and let there be records at the offsets 5 and 6 with one vector each, at 8 with
    a batch of 5 vectors, and at 9 with one vector. The first two share a block, and have the rows 1 and 2. The batch
    has two blocks of its own, and the rows 4 to 8. The last record begins a block at row 12, and has row 13.
    """
    # Of each record (m,): the row of its first vector in its block, and how many rows its blocks have.
    row_in_block = np.where(in_batches, 0, offsets % GEMM_ROWS)
    blocks_of_batch = (counts + GEMM_ROWS - 1) // GEMM_ROWS  # rounded up
    heights = GEMM_ROWS * np.where(in_batches, blocks_of_batch, 1)
    # A record begins a new block if it is a batch, or if the record before it is a batch or in another block.
    offset_of_block = np.where(in_batches, -1, offsets - row_in_block)  # at row 0 of the block; -1: a batch
    begins_block = in_batches | (np.diff(offset_of_block, prepend=-1) != 0)
    ends_of_blocks = np.cumsum(heights * begins_block)
    first_rows = ends_of_blocks - heights + row_in_block
    # Of each vector (n,): its index among the vectors of its record.
    first_vectors = np.cumsum(counts) - counts
    index_in_record = np.arange(counts.sum()) - np.repeat(first_vectors, counts)
    return np.asarray(np.repeat(first_rows, counts) + index_in_record)


def _join(runs: list[Fields]) -> Fields:
    """Return the fields of the vectors of all runs, which follow each other."""
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

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
            # "contributions:5" stands for several fields: for each score, the five dimensions that contributed most,
            # and what they contributed. The label says which machine, say, the record is about.
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
        have_own_blocks: NDArray[np.bool_],
    ) -> Fields:  # fmt: skip
        """Return the fields of the vectors (n, d) of m records, n > 0, whose offsets (m,) ascend.

        A block is `GEMM_ROWS` rows that are multiplied at once. The row of a vector in its block depends on the record
        alone, so that the fields of a record have the same bits whatever else is projected with it. A record may have
        several vectors, `counts` (m,), if it is true in `have_own_blocks` (m,): its vectors begin at row 0 of blocks of
        their own. Any other record has one vector, whose row is offset % GEMM_ROWS in the block of the near offsets.
        """
        are_consecutive = offsets[-1] - offsets[0] == len(offsets) - 1
        if are_consecutive and not have_own_blocks.any():
            return self._project_consecutive(published, vectors, int(offsets[0]))
        return self._project_at(published, vectors, _find_rows_in_blocks(offsets, counts, have_own_blocks))

    def _project_consecutive(self, published: PublishedModel, vectors: Array, offset: int) -> Fields:
        """Return the fields of vectors at consecutive offsets, the first at `offset`.

        The row of a vector in its block is offset % GEMM_ROWS. This is an optimisation: unlike `_project_at`, this
        function does not copy the vectors that fill whole blocks.
        """
        n = len(vectors)
        # For example, with blocks of 4 rows: of the offsets 6 to 16, 6 and 7 end a block, 8 to 15 fill two blocks, and
        # 16 begins a block. Each of these three parts may be empty.
        row_of_first = offset % GEMM_ROWS  # 2 in the example
        rows_to_next_block = -row_of_first % GEMM_ROWS  # 2
        row_after_last = (row_of_first + n) % GEMM_ROWS  # 1
        whole_start = min(rows_to_next_block, n)  # 2, the index of offset 8
        whole_stop = max(whole_start, n - row_after_last)  # 10, the index of offset 16
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
        """Return the fields of vectors, each computed at its row in `rows` (n,), which are counted over all blocks."""
        fields = self._compute(published, place_at_indices(vectors, rows))
        return {name: values[rows] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, blocks: Array) -> Fields:
        """Return the fields of vectors (n, d), which fill whole blocks: n is a multiple of `GEMM_ROWS`."""
        projected = published.project(blocks)
        fields: dict[str, NDArray[Any]] = {}
        computed = list(self.emitted)
        if self.with_p and "p" not in computed:
            computed.append("p")  # not emitted: `Outputs` selects by p which records get outputs
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
        if self.with_names:
            # A model without names gets the numbers as names, since the schema of the outputs needs some.
            names = np.array(published.names or [str(i) for i in range(d)], object)
        fields: dict[str, NDArray[Any]] = {}
        (t2_dimensions, spe_dimensions), contributions = projected.contributions(min(limit, d))
        largest_by_score = {"t2": (t2_dimensions, contributions.t2), "spe": (spe_dimensions, contributions.spe)}
        for score, (dimensions, values) in largest_by_score.items():
            fields[f"{score}_dimensions"] = dimensions
            fields[f"{score}_contributions"] = values.astype(np.float64, copy=False)
            if names is not None:
                fields[f"{score}_names"] = names[dimensions]
        return fields


def _find_rows_in_blocks(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_blocks: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row (n,) of each vector, counted over all blocks of `GEMM_ROWS` rows that are multiplied at once.

    The row of a vector in its block depends on its record alone: see `OutputFields.project`, which has the same
    arguments. For example, let a block have 4 rows, and let the records at the offsets 5, 6 and 9 have one vector each,
    and the record at 8 five vectors in blocks of its own. The result is 1, 2, 4, 5, 6, 7, 8, 13, by these steps:

        offset           5   6   8   9
        row_in_block     1   2   0   1   of the first vector of the record
        heights          4   4   8   4   rows of all blocks of the record
        begins_block     T   F   T   T   F: in the same block as the record before
        block_starts     0   0   4  12   row at which the blocks of the record begin
        first_rows       1   2   4  13   block_starts + row_in_block
    """
    row_in_block = np.where(have_own_blocks, 0, offsets % GEMM_ROWS)
    own_block_count = (counts + GEMM_ROWS - 1) // GEMM_ROWS  # rounded up
    heights = GEMM_ROWS * np.where(have_own_blocks, own_block_count, 1)
    # Two records share a block if they have the same offset at row 0 of their block. Records with own blocks have no
    # such offset. The first record always begins a block: it has an offset, or own blocks.
    no_offset = -1
    offset_at_row_0 = np.where(have_own_blocks, no_offset, offsets - row_in_block)
    is_other_block = np.diff(offset_at_row_0, prepend=no_offset) != 0
    begins_block = have_own_blocks | is_other_block
    block_ends = np.cumsum(heights * begins_block)  # a record that shares the block before adds no rows
    block_starts = block_ends - heights
    first_rows = block_starts + row_in_block
    # Of each vector (n,): its index among the vectors of its record.
    first_vectors = np.cumsum(counts) - counts
    index_in_record = np.arange(counts.sum()) - np.repeat(first_vectors, counts)
    return np.asarray(np.repeat(first_rows, counts) + index_in_record)


def _join(runs: list[Fields]) -> Fields:
    """Return the fields of the vectors of all runs, which follow each other."""
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

"""Which fields outputs have, and their values: projected vectors.

The result for a record must not depend on the batch that it came in, and BLAS may round a row differently for another
number of rows, or at another index. So rows are computed in tiles of a fixed height, and the offset of a record
decides at which index of a tile its row is.
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
from streampca.pca.projection import GEMM_ROWS, multiply_in_tiles, place_at_indices

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
            # and what they contributed.
            if name.startswith("contributions:"):
                for score in ("t2", "spe"):
                    kinds |= {f"{score}_dimensions": "integers", f"{score}_contributions": "numbers"}
                    if self.with_names:
                        kinds[f"{score}_names"] = "texts"
                if self.with_label:  # contributions explain an alert, and the label names, for example, its machine
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
        have_own_tiles: NDArray[np.bool_],
    ) -> Fields:  # fmt: skip
        """Return the fields of the vectors (n, d) of m records, n > 0, whose offsets (m,) ascend.

        Vectors are multiplied in tiles of `GEMM_ROWS` rows, and BLAS may round a vector differently in another row. So
        that the fields of a record always have the same bits, the row of a vector in its tile depends on the record
        alone:

        - If `have_own_tiles` (m,) is true for a record, its `counts` (m,) vectors fill tiles of its own from row 0 on.
        - Any other record has one vector, in row offset % GEMM_ROWS. Records of near offsets share a tile.
        """
        are_consecutive = offsets[-1] - offsets[0] == len(offsets) - 1
        if are_consecutive and not have_own_tiles.any():
            # An optimisation: the vectors are in consecutive rows, so those that fill whole tiles need not be copied.
            return self._project_consecutive(published, vectors, int(offsets[0]))
        return self._project_at(published, vectors, _find_rows_in_tiles(offsets, counts, have_own_tiles))

    def _project_consecutive(self, published: PublishedModel, vectors: Array, offset: int) -> Fields:
        """Return the fields of vectors at consecutive offsets, the first at `offset`.

        Vectors are multiplied in tiles of `GEMM_ROWS` rows. The vector of an offset is always in row offset % GEMM_ROWS
        of a tile, since BLAS may round it differently in another row. This is an optimisation: unlike `_project_at`,
        this function does not copy the vectors that fill whole tiles.
        """
        n = len(vectors)
        # For example, with tiles of 4 rows: of the offsets 6 to 16, 6 and 7 end a tile, 8 to 15 fill two tiles, and 16
        # begins a tile. Each of these three parts may be empty.
        row_of_first = offset % GEMM_ROWS  # 2 in the example
        rows_to_next_tile = -row_of_first % GEMM_ROWS  # 2
        rows_in_last_tile = (row_of_first + n) % GEMM_ROWS  # 1; 0 if the last tile is full
        whole_start = min(rows_to_next_tile, n)  # 2, the index of offset 8
        # 10, the index of offset 16. If the vectors do not reach the next tile, n - rows_in_last_tile is no index, and
        # `max` makes the second and third part empty.
        whole_stop = max(whole_start, n - rows_in_last_tile)
        runs = []
        for start, stop in pairwise([0, whole_start, whole_stop, n]):
            if start < stop:
                row_of_start = (row_of_first + start) % GEMM_ROWS
                runs.append(self._project_run(published, vectors[start:stop], row_of_start))
        return _join(runs)

    def _project_run(self, published: PublishedModel, vectors: Array, row: int) -> Fields:
        """Return the fields of vectors that are in consecutive rows, the first at this row of a tile."""
        are_whole_tiles = row == 0 and len(vectors) % GEMM_ROWS == 0
        if are_whole_tiles:  # each vector is in its row already
            return self._compute(published, vectors)
        # Copies the vectors into their rows of tiles, whose remaining rows are padding.
        return self._project_at(published, vectors, np.arange(row, row + len(vectors)))

    def _project_at(self, published: PublishedModel, vectors: Array, rows: NDArray[np.int64]) -> Fields:
        """Return the fields of vectors, each computed at its row in `rows` (n,), which are counted over all tiles."""
        fields = self._compute(published, place_at_indices(vectors, rows))
        return {name: values[rows] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, vectors: Array) -> Fields:
        """Return the fields of vectors (n, d), which fill whole tiles: n is a multiple of `GEMM_ROWS`."""
        projected = published.project(vectors)
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
                return projected.in_basis(self.basis)  # if it is "whitened", divided by their standard deviations
            case "residual":
                return projected.residual
            case "score":
                return projected.scores.score
            case "p":
                return np.full(len(projected.vectors), np.nan) if projected.p is None else projected.p
            case "reconstruction":
                model = projected.model
                # In tiles, so that the row of a vector is rounded the same in every batch.
                return model.uncentre(multiply_in_tiles(projected.coordinates, model.components))
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
        # The dimensions (2, n, limit) are for T² and for SPE; contributions.t2 and contributions.spe have their order.
        dimensions_by_score, contributions = projected.contributions(min(limit, d))
        t2_dimensions, spe_dimensions = dimensions_by_score
        largest_by_score = {"t2": (t2_dimensions, contributions.t2), "spe": (spe_dimensions, contributions.spe)}
        for score, (dimensions, values) in largest_by_score.items():
            fields[f"{score}_dimensions"] = dimensions
            fields[f"{score}_contributions"] = values.astype(np.float64, copy=False)
            if names is not None:
                fields[f"{score}_names"] = names[dimensions]
        return fields


def _find_rows_in_tiles(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_tiles: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row of each of n vectors, counted over all tiles of `GEMM_ROWS` rows.

    `counts` (m,) are the numbers of vectors of m records; the vectors of a record are in consecutive rows. A record
    for which `have_own_tiles` (m,) is true shares no tile with another record, since it may have several vectors.
    """
    rows_of_first_vectors = _find_first_rows(offsets, counts, have_own_tiles)  # (m,)
    vectors_before_record = np.cumsum(counts) - counts  # (m,)
    index_in_record = np.arange(counts.sum()) - np.repeat(vectors_before_record, counts)  # (n,)
    return np.asarray(np.repeat(rows_of_first_vectors, counts) + index_in_record)


def _find_first_rows(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_tiles: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row (m,) of the first vector of each of m records, counted over all tiles of `GEMM_ROWS` rows.

    A record with tiles of its own begins at row 0 of a tile, and has `counts` vectors. Any other record has one vector,
    at row offset % GEMM_ROWS of a tile. Neighbours share this tile if offset // GEMM_ROWS is the same. For example,
    let a tile have 4 rows, and let the record at offset 8 have five vectors, in tiles of its own:

        offsets          5   6   8   9
        row_in_tile      1   2   0   1
        heights          4   4   8   4   rows of all tiles of the record
        begins_tile      T   F   T   T   false (F) for a record that shares the tile of the record before
        tile_ends        4   4  12  16
        tile_starts      0   0   4  12   row at which the tiles of the record begin
        result           1   2   4  13   tile_starts + row_in_tile
    """
    row_in_tile = np.where(have_own_tiles, 0, offsets % GEMM_ROWS)
    own_tile_count = (counts + GEMM_ROWS - 1) // GEMM_ROWS  # rounded up
    heights = GEMM_ROWS * np.where(have_own_tiles, own_tile_count, 1)
    # Neighbours share a tile if the same offset belongs to row 0 of their tile. If a record has tiles of its own, no
    # offset belongs to row 0. The first record always begins a tile.
    no_offset = -1
    offset_of_row_0 = np.where(have_own_tiles, no_offset, offsets - row_in_tile)
    is_other_tile = np.diff(offset_of_row_0, prepend=no_offset) != 0
    # After a record with tiles of its own, `is_other_tile` misses a second one, since both have `no_offset`.
    begins_tile = have_own_tiles | is_other_tile
    tile_ends = np.cumsum(heights * begins_tile)  # a record in the tile of the record before adds no rows
    tile_starts = tile_ends - heights  # records that share a tile have the same end and the same height
    return np.asarray(tile_starts + row_in_tile)


def _join(runs: list[Fields]) -> Fields:
    """Return the fields of the vectors of all runs, which follow each other."""
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

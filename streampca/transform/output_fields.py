"""Which fields outputs have, and their values: projected vectors.

The result for a record must not depend on the batch that it came in, and BLAS may round a row differently for another
number of rows, or at another index. So rows are computed in tiles of `GEMM_ROWS` rows, and a vector has the same row
in its tile in every batch: offset % `GEMM_ROWS`. If a record may have several vectors, they fill tiles of their own,
from row 0 on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
            if name.startswith("contributions:"):
                kinds |= self._list_contribution_kinds()
            else:
                kinds[name] = _KINDS.get(name, "number")
        return kinds

    def _list_contribution_kinds(self) -> Mapping[str, Kind]:
        """Return the kinds of the output fields that "contributions:N" in the setting `emit` adds."""
        kinds: dict[str, Kind] = {}
        for score in ("t2", "spe"):
            kinds |= {f"{score}_dimensions": "integers", f"{score}_contributions": "numbers"}
            if self.with_names:
                kinds[f"{score}_names"] = "texts"
        if self.with_label:
            kinds["label"] = "text"
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
        """Return the fields of the vectors (n, d) of m > 0 records, whose offsets (m,) ascend.

        A tile is `GEMM_ROWS` rows that are multiplied together, and how a row is rounded depends on its index in the
        tile. So vectors are put into a larger matrix of tiles. A vector's index in its tile depends only on the offset
        of its record, or on the vector's number in the record if the record has tiles of its own.

        `counts` (m,) says how many vectors each record has. `have_own_tiles` (m,) marks the records that may have
        several vectors.
        """
        rows = _find_matrix_rows(offsets, counts, have_own_tiles)  # (n,), the row of each vector in the matrix
        fields = self._compute(published, place_at_indices(vectors, rows))
        return {name: values[rows] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, vectors: Array) -> Fields:
        """Return the fields of vectors (n, d), which fill whole tiles: n is a multiple of `GEMM_ROWS`."""
        projected = published.project(vectors)
        fields: dict[str, NDArray[Any]] = {}
        names = list(self.emitted)
        if self.with_p and "p" not in names:
            names.append("p")  # `Outputs` selects records by p
        for name in names:
            if name.startswith("contributions:"):
                count = int(name.removeprefix("contributions:"))
                fields |= self._compute_contributions(published, projected, count)
            elif name != "record":  # `Outputs` adds the input record
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
                return model.uncentre(multiply_in_tiles(projected.coordinates, model.components))
        raise ValueError(f"outputs have no field {name}")

    def _compute_contributions(self, published: PublishedModel, projected: Projected, count: int) -> Fields:
        """Return the `count` dimensions that contribute most to T² and to SPE."""
        d = published.model.dimensions
        # The schema of the outputs needs names, so a model without names gets numbers.
        names = np.array(published.names or [str(i) for i in range(d)], object) if self.with_names else None
        t2_and_spe_dimensions, contributions = projected.contributions(min(count, d))
        t2_dimensions, spe_dimensions = t2_and_spe_dimensions
        fields: dict[str, NDArray[Any]] = {}
        for score, indices, values in (
            ("t2", t2_dimensions, contributions.t2),
            ("spe", spe_dimensions, contributions.spe),
        ):
            fields[f"{score}_dimensions"] = indices
            fields[f"{score}_contributions"] = values
            if names is not None:
                fields[f"{score}_names"] = names[indices]
        return fields


def _find_matrix_rows(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_tiles: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return for each vector of m records its row (n,) in a matrix that consists of tiles of `GEMM_ROWS` = 32 rows.

    A vector must have the same row in its tile in every batch, because the rounding of a product may depend on this
    row. If a record has its own tiles, its vectors fill them from row 0 on. Any other record has one vector, in row
    offset % 32 of a tile. Neighbours of this kind share a tile if they have the same offset // 32.

    Example: the records at offsets 30, 31, 33 and 34 have 1, 1, 40 and 1 vectors. The record at 33 has its own tiles.

        offset         30 | 31 | 33 (32 of its vectors) | 33 (the other 8) | 34
        row in tile    30 | 31 |  0 … 31                |  0 … 7           |  2
        tile            0 |  0 |  1                     |  2               |  3
        row in matrix  30 | 31 | 32 … 63                | 64 … 71          | 98 = 32 · 3 + 2
    """
    vectors_before_record = np.cumsum(counts) - counts  # (m,)
    # From here on, all arrays have one item for each vector, (n,).
    indices_in_record = np.arange(counts.sum()) - np.repeat(vectors_before_record, counts)
    offsets_of_vectors = np.repeat(offsets, counts)
    are_in_own_tiles = np.repeat(have_own_tiles, counts)
    rows_in_tile = np.where(are_in_own_tiles, indices_in_record, offsets_of_vectors) % GEMM_ROWS
    # A vector in a record's own tiles begins a tile in row 0. Any other vector begins a tile if the vector before it is
    # in another tile: in another shared tile, or in a record's own tile, for which -1 stands.
    no_shared_tile = -1
    shared_tiles = np.where(are_in_own_tiles, no_shared_tile, offsets_of_vectors // GEMM_ROWS)
    differ_from_before = np.diff(shared_tiles, prepend=no_shared_tile) != 0
    begin_tile = np.where(are_in_own_tiles, rows_in_tile == 0, differ_from_before)
    tiles = np.cumsum(begin_tile) - 1  # the first tile is 0
    return np.asarray(GEMM_ROWS * tiles + rows_in_tile)

"""Which fields outputs have, and their values: projected vectors.

The result for a record must not depend on the batch that it came in, and BLAS may round a row differently for another
number of rows, or at another index. So rows are computed in tiles of `GEMM_ROWS` rows, and a vector has the same row
in its tile in every batch: offset % `GEMM_ROWS`. If a record may have several vectors, they fill tiles of their own,
from row 0 on.
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
            # "contributions:5" stands for several fields of five dimensions each.
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
        have_own_tiles: NDArray[np.bool_],
    ) -> Fields:  # fmt: skip
        """Return the fields of the vectors (n, d) of m > 0 records, whose offsets (m,) ascend.

        A record has `counts` (m,) vectors. Its `have_own_tiles` (m,) is True if it may have several: then no tile
        (`GEMM_ROWS` rows, which are multiplied together) holds vectors of another record, too.
        """
        are_consecutive = offsets[-1] - offsets[0] == len(offsets) - 1
        if are_consecutive and not have_own_tiles.any():
            # An optimisation: most vectors need not be copied.
            return self._project_consecutive(published, vectors, int(offsets[0]))
        return self._project_at(published, vectors, _find_rows_in_tiles(offsets, counts, have_own_tiles))

    def _project_consecutive(self, published: PublishedModel, vectors: Array, offset: int) -> Fields:
        """Return the fields of vectors at consecutive offsets, the first at `offset`.

        A tile is `GEMM_ROWS` rows, which are multiplied together. The same offset always has the same row of a tile, so
        that its fields have the same bits in every batch.
        """
        n = len(vectors)
        row_of_first = offset % GEMM_ROWS  # in its tile
        rows_to_next_tile = -row_of_first % GEMM_ROWS  # 0 if a tile begins with the first row
        rows_in_last_tile = (row_of_first + n) % GEMM_ROWS
        whole_start = min(rows_to_next_tile, n)
        whole_stop = max(whole_start, n - rows_in_last_tile)  # there may be no whole tile
        runs = []
        # The end of a tile, whole tiles (an optimisation: they are not copied), and the beginning of a tile.
        for start, stop in pairwise([0, whole_start, whole_stop, n]):
            if start < stop:
                row_of_start = (row_of_first + start) % GEMM_ROWS
                runs.append(self._project_run(published, vectors[start:stop], row_of_start))
        return _join(runs)

    def _project_run(self, published: PublishedModel, vectors: Array, first_row: int) -> Fields:
        """Return the fields of vectors in consecutive rows, the first in row `first_row` of a tile.

        A tile is `GEMM_ROWS` rows, which are multiplied together.
        """
        are_whole_tiles = first_row == 0 and len(vectors) % GEMM_ROWS == 0
        if are_whole_tiles:
            return self._compute(published, vectors)
        return self._project_at(published, vectors, np.arange(first_row, first_row + len(vectors)))

    def _project_at(self, published: PublishedModel, vectors: Array, rows: NDArray[np.int64]) -> Fields:
        """Return the fields of vectors (n, d), vector i computed in row `rows[i]` of a longer matrix."""
        fields = self._compute(published, place_at_indices(vectors, rows))
        return {name: values[rows] for name, values in fields.items()}

    def _compute(self, published: PublishedModel, vectors: Array) -> Fields:
        """Return the fields of vectors (n, d); n is a multiple of `GEMM_ROWS`."""
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
        names = None
        if self.with_names:
            # The schema of the outputs needs names.
            names = np.array(published.names or [str(i) for i in range(d)], object)
        fields: dict[str, NDArray[Any]] = {}
        (t2_dimensions, spe_dimensions), contributions = projected.contributions(min(count, d))
        for score, dimensions, values in (
            ("t2", t2_dimensions, contributions.t2),
            ("spe", spe_dimensions, contributions.spe),
        ):
            fields[f"{score}_dimensions"] = dimensions
            fields[f"{score}_contributions"] = values.astype(np.float64, copy=False)
            if names is not None:
                fields[f"{score}_names"] = names[dimensions]
        return fields


def _find_rows_in_tiles(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_tiles: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row (n,) of each vector in a matrix that consists of tiles of `GEMM_ROWS` rows.

    The vectors of a record are in consecutive rows.
    """
    rows_of_first_vectors = _find_first_rows(offsets, counts, have_own_tiles)  # (m,)
    vectors_before_record = np.cumsum(counts) - counts  # (m,)
    index_in_record = np.arange(counts.sum()) - np.repeat(vectors_before_record, counts)  # (n,)
    return np.asarray(np.repeat(rows_of_first_vectors, counts) + index_in_record)


def _find_first_rows(
    offsets: NDArray[np.int64], counts: NDArray[np.int64], have_own_tiles: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row (m,) of the first vector of each record in a matrix that consists of tiles of `GEMM_ROWS` rows.

    Neighbours with the same offset // `GEMM_ROWS` share a tile, unless one has tiles of its own.
    """
    row_in_tile = np.where(have_own_tiles, 0, offsets % GEMM_ROWS)
    own_tile_count = (counts + GEMM_ROWS - 1) // GEMM_ROWS  # rounded up
    rows_of_tiles = GEMM_ROWS * np.where(have_own_tiles, own_tile_count, 1)
    not_shared = -1
    shared_tile = np.where(have_own_tiles, not_shared, offsets // GEMM_ROWS)
    differs_from_tile_before = np.diff(shared_tile, prepend=not_shared) != 0
    begins_tile = have_own_tiles | differs_from_tile_before
    tile_ends = np.cumsum(rows_of_tiles * begins_tile)
    tile_starts = tile_ends - rows_of_tiles
    return np.asarray(tile_starts + row_in_tile)


def _join(runs: list[Fields]) -> Fields:
    """Return the fields of the vectors of all runs, which follow each other."""
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

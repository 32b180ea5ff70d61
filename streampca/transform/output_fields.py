"""Which fields outputs have, and their values: the vectors of records, projected.

The result for a record does not depend on the batch that it came in: BLAS may round a row differently depending
on the number of rows and the row's index. So rows are computed in blocks of a fixed height, each at the index that its
offset gives.
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
    """The fields to compute: coordinates, residual, score, p and reconstruction in float64; and contributions."""

    emitted: tuple[str, ...]
    basis: Basis = "principal"
    with_p: bool = False  # compute p even if it is not emitted
    named: bool = False  # contributions have the names of dimensions

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """The fields of an output, and what they hold; `record` is no result of the model's."""
        kinds: dict[str, Kind] = {}
        for name in self.emitted:
            if name.startswith("contributions:"):
                for of in ("t2", "spe"):
                    kinds |= {f"{of}_dimensions": "integers", f"{of}_contributions": "numbers"}
                    kinds |= {f"{of}_names": "texts"} if self.named else {}
            else:
                kinds[name] = _KINDS.get(name, "number")
        return kinds

    @property
    def layout(self) -> Layout:
        return Layout(self.kinds, record="Projection")

    @property
    def needs_past_scores(self) -> bool:
        """True if the model must have past scores to compare with."""
        return self.with_p or "p" in self.emitted

    def of_records(
        self, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64], counts: NDArray[np.int64],
        in_batches: NDArray[np.bool_],
    ) -> Fields:  # fmt: skip
        """The fields of the vectors (n, d) of m records at ascending offsets (m,), which have `counts` (m,); n > 0.

        A record that is not in `in_batches` (m,) has one vector. It is in the block of the records whose offsets are
        near, at the index that its own offset gives. Any other record begins a block.
        """
        n, at = len(vectors), offsets % GEMM_ROWS
        if not in_batches.any() and offsets[-1] - offsets[0] == n - 1:
            first = int(at[0])
            head = min(-first % GEMM_ROWS, n)  # the rest of a block, then whole ones, then the begin of one
            bounds = [0, head, max(head, n - (first + n) % GEMM_ROWS), n]
            runs = [(i, j) for i, j in pairwise(bounds) if i < j]
            return _joined([self._of_run(published, vectors[i:j], (first + i) % GEMM_ROWS) for i, j in runs])
        heights = GEMM_ROWS * np.where(in_batches, -(-counts // GEMM_ROWS), 1)
        begins = in_batches | (np.diff(np.where(in_batches, -1, offsets - at), prepend=-1) != 0)
        starts = np.cumsum(heights * begins) - heights + np.where(in_batches, 0, at)
        within = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._at(published, vectors, np.repeat(starts, counts) + within)

    def _of_run(self, published: PublishedModel, vectors: Array, start: int) -> Fields:
        """The fields of vectors that follow each other, from the index `start` of a block on."""
        if start == 0 and len(vectors) % GEMM_ROWS == 0:
            return self._fields(published, vectors)  # without a copy
        return self._at(published, vectors, np.arange(start, start + len(vectors)))

    def _at(self, published: PublishedModel, vectors: Array, indices: NDArray[np.int64]) -> Fields:
        """The fields of vectors, computed at these indices of blocks."""
        fields = self._fields(published, place_at_indices(vectors, indices))
        return {name: values[indices] for name, values in fields.items()}

    def _fields(self, published: PublishedModel, rows: Array) -> Fields:
        projected, model = published.project(rows), published.model
        compute: dict[str, Callable[[], Array]] = {
            "coordinates": lambda: projected.in_basis(self.basis),
            "residual": lambda: projected.residual,
            "score": lambda: projected.scores.score,
            "p": lambda: np.full(len(rows), np.nan) if projected.p is None else projected.p,
            "reconstruction": lambda: model.uncentre(multiply_in_blocks(projected.coordinates, model.components)),
        }
        names = (*self.emitted, "p") if self.needs_past_scores else self.emitted
        fields = {name: compute[name]().astype(np.float64, copy=False) for name in names if name in compute}
        # A model that has lost its names, such as one of another store, changes no schema.
        dimensions = (published.names or list(map(str, range(model.dimensions)))) if self.named else None
        for limit in [int(name.split(":")[1]) for name in names if ":" in name]:
            fields |= _contributions(projected, min(limit, model.dimensions), dimensions)
        return fields


def _contributions(projected: Projected, limit: int, names: Sequence[str] | None) -> Fields:
    """The dimensions that contribute most to T² and to SPE, what they contribute, and their names, if they have any."""
    fields: dict[str, NDArray[Any]] = {}
    which, values = projected.contributions(limit)
    for of, dimensions, contributions in zip(values._fields, which, values, strict=True):
        fields |= {f"{of}_dimensions": dimensions, f"{of}_contributions": contributions.astype(np.float64, copy=False)}
        if names:
            fields[f"{of}_names"] = np.array(names, object)[dimensions]
    return fields


def _joined(runs: list[Fields]) -> Fields:
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

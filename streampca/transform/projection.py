"""Projects the vectors of records with a model, as values of outputs.

The result for a record does not depend on the batch that it came in: BLAS may round a row differently depending
on the number of rows and the row's index. So rows are computed in blocks of a fixed height, each at the index that its
offset gives.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields, Layout
from streampca.pca import scoring
from streampca.pca.arrays import F64, Array
from streampca.pca.model import GEMM_ROWS, Basis, at_indices


@dataclass(frozen=True)
class Projection:
    """The fields to compute: any of coordinates, residual, score, p and reconstruction; always in float64."""

    emitted: tuple[str, ...]
    basis: Basis = "principal"
    with_p: bool = False  # compute p, too

    @property
    def layout(self) -> Layout:
        return Layout({name: name in ("coordinates", "reconstruction") for name in self.emitted}, record="Projection")

    @property
    def needs_calibration(self) -> bool:
        """True if the model must have past scores to compare with."""
        return self.with_p or "p" in self.emitted

    def of(self, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64]) -> Fields:
        """The fields of vectors (n, d) that are alone in the records at these offsets (n,), ascending; n > 0."""
        first, n = int(offsets[0]) % GEMM_ROWS, len(offsets)
        if offsets[-1] - offsets[0] == n - 1:
            head = min(-first % GEMM_ROWS, n)  # the rest of a block, then whole ones, then the begin of one
            bounds = [0, head, max(head, n - (first + n) % GEMM_ROWS), n]
            runs = [(i, j) for i, j in pairwise(bounds) if i < j]
            return _joined([self._of_run(published, vectors[i:j], (first + i) % GEMM_ROWS) for i, j in runs])
        height = GEMM_ROWS * np.unique(offsets // GEMM_ROWS, return_inverse=True)[1]
        return self._at(published, vectors, height + offsets % GEMM_ROWS)

    def of_each(self, published: PublishedModel, vectors: Array, counts: NDArray[np.int64]) -> Fields:
        """As `of`, of vectors that are several in a record: `counts` (m,), whose sum is n."""
        heights = -(-counts // GEMM_ROWS) * GEMM_ROWS
        starts = np.cumsum(heights) - heights
        within = np.arange(len(vectors)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._at(published, vectors, np.repeat(starts, counts) + within)

    def _of_run(self, published: PublishedModel, vectors: Array, start: int) -> Fields:
        """The fields of vectors that follow each other, from the index `start` of a block on."""
        if start == 0 and len(vectors) % GEMM_ROWS == 0:
            return self._fields(published, vectors)  # without a copy
        return self._at(published, vectors, np.arange(start, start + len(vectors)))

    def _at(self, published: PublishedModel, vectors: Array, indices: NDArray[np.int64]) -> Fields:
        """The fields of vectors, computed at these indices of blocks."""
        fields = self._fields(published, at_indices(vectors, indices))
        return {name: values[indices] for name, values in fields.items()}

    def _fields(self, published: PublishedModel, rows: Array) -> Fields:
        model = published.model
        _, coordinates, residual, gaps_t2 = scoring.project(model, rows)
        with np.errstate(all="ignore"):
            shown = model.whiten(coordinates) if self.basis == "whitened" else coordinates
        fields = {"coordinates": shown, "residual": residual}
        if "score" in self.emitted or self.needs_calibration:
            scores = scoring.score_projected(model, coordinates, residual, gaps_t2)
            fields["score"] = scores.score
            fields["p"] = _p_values(published, scores)
        if "reconstruction" in self.emitted:
            blocks = range(0, len(rows), GEMM_ROWS)
            fields["reconstruction"] = np.concatenate(
                [model.reconstruct(coordinates[i : i + GEMM_ROWS]) for i in blocks]
            )
        names = (*self.emitted, "p") if self.needs_calibration else self.emitted
        return {name: fields[name].astype(np.float64, copy=False) for name in names}


def _p_values(published: PublishedModel, scores: scoring.Scores) -> F64:
    if published.calibration is None:
        return np.full(len(scores.score), np.nan)
    return published.calibration.p_values(scores, published.model.noise_variance).score


def _joined(runs: list[Fields]) -> Fields:
    if len(runs) == 1:
        return runs[0]
    return {name: np.concatenate([fields[name] for fields in runs]) for name in runs[0]}

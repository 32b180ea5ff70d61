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
from streampca.pca import scoring
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Basis

_BLOCK = 32  # rows, as many as `Model.project` computes at once

Fields = dict[str, Array]
"""What is computed of n vectors, by name: (n,), (n, k) or (n, d)."""


@dataclass(frozen=True)
class Projection:
    """What to compute: any of coordinates, residual, score, p and reconstruction."""

    emitted: tuple[str, ...]
    basis: Basis = "principal"
    with_p: bool = False  # compute p, too

    @property
    def needs_calibration(self) -> bool:
        """Whether the model must have past scores to compare with."""
        return self.with_p or "p" in self.emitted

    def of(self, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64]) -> Fields:
        """The fields of vectors (n, d) that are alone in the records at these offsets (n,), ascending; n > 0."""
        first, n = int(offsets[0]) % _BLOCK, len(offsets)
        if offsets[-1] - offsets[0] == n - 1:
            head = min(-first % _BLOCK, n)  # the rest of a block, then whole ones, then the begin of one
            cuts = [0, head, max(head, n - (first + n) % _BLOCK), n]
            runs = [(i, j) for i, j in pairwise(cuts) if i < j]
            return _joined([self._of_run(published, vectors[i:j], (first + i) % _BLOCK) for i, j in runs])
        height = _BLOCK * np.unique(offsets // _BLOCK, return_inverse=True)[1]
        return self._at(published, vectors, height + offsets % _BLOCK)

    def of_each(self, published: PublishedModel, vectors: Array, counts: NDArray[np.int64]) -> Fields:
        """As `of`, of vectors that are several in a record: `counts` (m,), whose sum is n."""
        heights = -(-counts // _BLOCK) * _BLOCK
        starts = np.cumsum(heights) - heights
        within = np.arange(len(vectors)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._at(published, vectors, np.repeat(starts, counts) + within)

    def _of_run(self, published: PublishedModel, vectors: Array, start: int) -> Fields:
        """The fields of vectors whose places follow each other, from the place `start` of a block on."""
        if start == 0 and len(vectors) % _BLOCK == 0:
            return self._fields(published, vectors)  # without a copy
        return self._at(published, vectors, np.arange(start, start + len(vectors)))

    def _at(self, published: PublishedModel, vectors: Array, places: NDArray[np.int64]) -> Fields:
        """The fields of vectors, each computed in its place."""
        height = -(-(int(places[-1]) + 1) // _BLOCK) * _BLOCK
        rows = np.zeros((height, vectors.shape[1]), vectors.dtype)
        rows[places] = vectors
        return {name: values[places] for name, values in self._fields(published, rows).items()}

    def _fields(self, published: PublishedModel, rows: Array) -> Fields:
        model = published.model
        _, coordinates, residual, gaps_t2 = scoring.project(model, rows)
        with np.errstate(all="ignore"):
            shown = model.whiten(coordinates) if self.basis == "whitened" else coordinates
        found: Fields = {"coordinates": shown, "residual": residual}
        if "score" in self.emitted or self.needs_calibration:
            scores = scoring.score_projected(model, coordinates, residual, gaps_t2)
            found["score"] = scores.score
            found["p"] = _p_values(published, scores)
        if "reconstruction" in self.emitted:
            blocks = range(0, len(rows), _BLOCK)
            found["reconstruction"] = np.concatenate([model.reconstruct(coordinates[i : i + _BLOCK]) for i in blocks])
        wanted = (*self.emitted, "p") if self.needs_calibration else self.emitted
        return {name: found[name] for name in wanted}


def _p_values(published: PublishedModel, scores: scoring.Scores) -> F64:
    if published.calibration is None:
        return np.full(len(scores.score), np.nan)
    return published.calibration.p_values(scores, published.model.noise_variance).score


def _joined(parts: list[Fields]) -> Fields:
    """The fields of all vectors, part after part."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

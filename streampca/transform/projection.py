"""Projects the vectors of records with a model, as values of outputs.

The result for a record does not depend on the batch that it came in: a matrix product may round a row differently in a
matrix of another height, or in another place of it. So rows are computed in blocks of a fixed height, each in the place
that its offset gives.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampca.pca import anomaly
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Basis
from streampca.stream.model_file import PublishedModel

_BLOCK = 32  # rows, as many as `Model.project` computes at once

Fields = dict[str, Array]
"""What is computed of n vectors, by name: (n,), (n, k) or (n, d)."""


@dataclass(frozen=True)
class Projection:
    """What to compute: any of coordinates, residual, score, p and reconstruction."""

    fields: tuple[str, ...]
    basis: Basis = "principal"

    @property
    def needs_calibration(self) -> bool:
        """Whether the model must have past scores to compare with."""
        return "p" in self.fields

    def of(self, published: PublishedModel, vectors: Array, offsets: NDArray[np.int64]) -> Fields:
        """The fields of vectors (n, d) that are alone in the records at these offsets (n,), ascending."""
        height = _BLOCK * np.unique(offsets // _BLOCK, return_inverse=True)[1]
        places = height + offsets % _BLOCK
        return self._at(published, vectors, places)

    def of_each(self, published: PublishedModel, vectors: Array, counts: NDArray[np.int64]) -> Fields:
        """As `of`, of vectors that are several in a record: `counts` (m,), whose sum is n."""
        heights = -(-counts // _BLOCK) * _BLOCK
        starts = np.cumsum(heights) - heights
        within = np.arange(len(vectors)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._at(published, vectors, np.repeat(starts, counts) + within)

    def _at(self, published: PublishedModel, vectors: Array, places: NDArray[np.int64]) -> Fields:
        """The fields of vectors, each computed in its place."""
        height = -(-(int(places.max(initial=-1)) + 1) // _BLOCK) * _BLOCK
        rows = np.zeros((height, vectors.shape[1]), vectors.dtype)
        rows[places] = vectors
        with np.errstate(all="ignore"):
            found = self._fields(published, rows)
        return {name: values[places] for name, values in found.items()}

    def _fields(self, published: PublishedModel, rows: Array) -> Fields:
        model = published.model
        completed, more_t2, more_spe = anomaly.complete(model, rows)
        coordinates, residual = model.project(completed)
        residual = residual + more_spe
        shown = model.whiten(coordinates) if self.basis == "whitened" else coordinates
        found: Fields = {"coordinates": shown, "residual": residual}
        if "score" in self.fields or "p" in self.fields:
            scores = anomaly.score_projected(model, coordinates, residual, more_t2)
            found["score"] = scores.score
            found["p"] = _p_values(published, scores)
        if "reconstruction" in self.fields:
            blocks = range(0, len(rows), _BLOCK)
            found["reconstruction"] = np.concatenate([model.reconstruct(coordinates[i : i + _BLOCK]) for i in blocks])
        return {name: found[name] for name in self.fields}


def _p_values(published: PublishedModel, scores: anomaly.AnomalyScores) -> F64:
    if published.calibration is None:
        return np.full(len(scores.score), np.nan)
    return published.calibration.p_values(scores, anomaly.noise_variance(published.model)).score

"""The sampling error of a merged model, estimated by a jackknife over groups of its streams.

The streams are dealt into G groups of weights w_j, W = Σ w_j. The model is compared with those of all groups but one:

    error² = 1/G Σ_j (W/w_j − 1) sin²(model without group j, model),

which for equal weights is (G − 1)/G Σ_j sin² (J. W. Tukey 1958, B. Efron 1982). The factors for unequal groups are
those of Busing, Meijer and van der Leeden (1999). docs/mathematics.md, section 7, says where the estimate is wrong.

Everything is computed from the columns F of all groups in the basis of their leading directions. Those of group j are
its factor and its mean about that of all, times √(w_j/W). Columns of several groups are about their own mean as
F (I − s sᵀ), where s has √(w_i / Σ w_i) at the column of each mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.merge import grouped
from streampca.pca.state import State

FEWEST = 4  # streams, and groups; fewer say little about an error
_UNCUT = 512  # columns of all groups; of more, the 2K leading directions count
_ROUNDING = 1e-13  # share of the largest variance below which a direction counts as rounding errors


@dataclass(frozen=True, eq=False)
class SamplingError:
    """How far the axes of a model are from those of the distribution that its messages were drawn from."""

    subspace: float  # expected Σ sin² of the principal angles between the two subspaces, at most k
    axes: F64  # (k,) standard error of each axis: an angle in radians, at most π/2


def jackknife(
    states: Sequence[State], components: int, columns: int, decay: Sequence[float] | None = None
) -> SamplingError | None:
    """The error of the `components` leading axes of `merge(states, columns, decay)`; None as `sampling_error`."""
    return sampling_error(grouped(states, columns, decay), components, columns)


def sampling_error(groups: Sequence[State], components: int, columns: int) -> SamplingError | None:
    """The error of the leading axes of the merged groups of a `Merger`, from at most `columns` columns of each.

    None with fewer than four groups, as there are fewer than four states with messages, or without variance. Axes
    without variance are arbitrary: their error is π/2, and the subspace is that of the others.
    """
    if len(groups) < FEWEST:
        return None
    weights = np.array([group.weight for group in groups])
    weights /= weights.sum()
    mean = np.sum([w * group.mean for group, w in zip(groups, weights, strict=True)], axis=0)
    factors = [np.column_stack([group.C[:, :columns], group.mean - mean]) for group in groups]
    widths = [factor.shape[1] for factor in factors]
    F = np.hstack([np.sqrt(w) * factor for factor, w in zip(factors, weights, strict=True)])
    F /= max(F.max(), -F.min()) or 1.0  # so that no square overflows
    return _error(_coordinates(F, F.shape[1] if F.shape[1] <= _UNCUT else 2 * columns), widths, weights, components)


def _coordinates(F: F64, limit: int) -> F64:
    """The columns F (d, n) in the basis of their `limit` leading axes (r, n), of which the first are the model's."""
    variance, vectors = np.linalg.eigh(F.T @ F)
    variance, vectors = variance[::-1][:limit], vectors[:, ::-1][:, :limit]
    known = variance > _ROUNDING * max(variance[0], 0.0)
    coordinates: F64 = np.sqrt(variance[known])[:, None] * vectors[:, known].T
    return coordinates


def _error(F: F64, widths: Sequence[int], weights: F64, components: int) -> SamplingError | None:
    group_of, rank = np.repeat(np.arange(len(widths)), widths), min(components, len(F))
    subspace, squares = 0.0, np.zeros(rank)
    for j, factor in enumerate((1 / weights - 1) / len(widths)):
        rest = group_of != j
        s = _means(widths, weights)[rest]
        cosines = _axes(_about_mean(F[:, rest], s / np.linalg.norm(s)), components)[:rank]
        subspace += factor * max(rank - float((cosines**2).sum()), 0.0)
        squares += factor * (1 - _diagonal(cosines) ** 2).clip(0)
    angles = np.arcsin(np.sqrt(squares.clip(0, 1)))
    unknown = np.full(components - rank, np.pi / 2)
    return SamplingError(min(subspace, float(rank)), np.append(angles, unknown)) if rank else None


def _means(widths: Sequence[int], weights: F64) -> F64:
    """The vector s (n,) of the streams with these numbers of columns and weights; its length is one."""
    s = np.zeros(sum(widths))
    s[np.cumsum(widths) - 1] = np.sqrt(weights / weights.sum())
    return s


def _about_mean(F: F64, s: F64) -> F64:
    """F (I − s sᵀ)."""
    centred: F64 = F - np.outer(F @ s, s)
    return centred


def _axes(F: F64, limit: int) -> F64:
    """Up to `limit` leading principal axes of the columns F (r, n) above rounding, as columns (r, ·)."""
    variance, vectors = np.linalg.eigh(F @ F.T)
    variance, vectors = variance[::-1][:limit], vectors[:, ::-1][:, :limit]
    axes: F64 = vectors[:, variance > _ROUNDING * max(variance.max(initial=0.0), 0.0)]
    return axes


def _diagonal(cosines: F64) -> F64:
    """The diagonal, one entry per row; zeros where columns are missing."""
    diagonal = np.zeros(len(cosines))
    found = cosines.diagonal()
    diagonal[: len(found)] = found
    return diagonal

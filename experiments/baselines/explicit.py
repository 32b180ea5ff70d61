"""The explicit updates: each adds η times a gradient at the C that the messages met.

    Oja                       C ← QR(C + η/N YYᵀC)
    Krasulina                 X = CᵀY        C ← QR(C − η/N (CX − Y)Xᵀ)              eq. 9; Tang 2019
    Krasulina without QR      X = C†Y        C ← C − η/N (CX − Y)Xᵀ                  the display after eq. 11
    Several machines          C = Σ αᵢ Cᵢ / Σ αᵢ, for Oja and Krasulina then QR      eq. 17

Krasulina's gradient is Oja's, projected onto the tangent space of the Stiefel manifold. Messages are Y (N, d), or one
message (d,); step sizes have the unit of one over a variance, without QR they depend on the scale of C, too.
"""

from collections.abc import Sequence

import numpy as np

from streampca.pca.arrays import Array


def orthonormal(C: Array) -> Array:
    """QR(C): a basis (d, k) of the span, unique by a positive diagonal of R; it leaves an orthonormal C as it is."""
    Q, R = np.linalg.qr(C)
    basis: Array = Q * np.where(np.diagonal(R) < 0, -1, 1).astype(Q.dtype)
    return basis


def oja(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k)."""
    Y = np.atleast_2d(Y)
    return orthonormal(C + eta / len(Y) * (Y.T @ (Y @ C)))


def krasulina(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k)."""
    return orthonormal(_descended(C, np.atleast_2d(Y), C.T @ np.atleast_2d(Y).T, eta))


def without_qr(C: Array, Y: Array, eta: float) -> Array:
    """The next C (d, k), of any scale and full column rank."""
    Y, (Q, R) = np.atleast_2d(Y), np.linalg.qr(C)
    return _descended(C, Y, np.linalg.solve(R, Q.T @ Y.T), eta)


def _descended(C: Array, Y: Array, X: Array, eta: float) -> Array:
    step: Array = C - eta / len(Y) * ((C @ X - Y.T) @ X.T)
    return step


def average(factors: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """Eq. 17 of factors (d, k): weighted by αᵢ ≥ 0, such as each one's number of messages; None: all alike."""
    combined: Array = np.average(np.stack(factors), axis=0, weights=weights)
    return combined


def aligned(C: Array, reference: Array) -> Array:
    """The factor C (d, k), rotated from the right to be nearest to another (orthogonal Procrustes problem)."""
    U, _, Vt = np.linalg.svd(C.T @ reference)
    turned: Array = C @ (U @ Vt)
    return turned

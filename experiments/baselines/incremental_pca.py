"""scikit-learn's IncrementalPCA (Ross, Lim, Lin & Yang 2008) with spare columns: K are learned, of which k are served.

The SVD of each batch below the previous components, which are scaled by their singular values, is cut to K columns.
"""

from collections.abc import Iterable

import numpy as np
from sklearn.decomposition import IncrementalPCA

from streampca.pca.arrays import F64


def components(batches: Iterable[F64], k: int, columns: int) -> tuple[F64, F64]:
    """The leading k of `columns` components as rows (k, d), and the mean (d,), after batches (N, d).

    A batch of fewer rows than columns is left out: scikit-learn does not take it.
    """
    pca = IncrementalPCA(columns)
    for batch in batches:
        if len(batch) >= columns:
            pca.partial_fit(batch)
    return np.asarray(pca.components_[:k], np.float64), np.asarray(pca.mean_, np.float64)

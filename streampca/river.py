"""`RiverPCA`: streaming PCA as a transformer of river. Needs the extra `river`."""

from typing import Any

import numpy as np
import pandas as pd
from river.base import MiniBatchTransformer

from streampca import StreamingPCA


class RiverPCA(MiniBatchTransformer):
    """Streaming PCA of the features of the first row. The parameters are those of `StreamingPCA`.

    If a later row lacks one of these features, its value is NaN, which missing="impute" fills. If it has further
    features, they are ignored. Before the first row is learned, a row has no coordinates.
    """

    def __init__(self, n_components: Any = None, **parameters: Any) -> None:
        self.n_components = n_components
        self.parameters = parameters
        self._pca = StreamingPCA(n_components, **parameters)
        self._features: list[Any] = []

    def learn_one(self, x: dict[Any, Any]) -> None:
        """Learn a row, a dictionary of values by feature."""
        self.learn_many(_as_frame(x))

    def learn_many(self, X: pd.DataFrame) -> None:
        """Learn rows. Bit for bit the same as `learn_one` of each row, and quicker."""
        if not self._features:
            self._features = sorted(X.columns, key=str)
        self._pca.partial_fit(self._values(X))

    def transform_one(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """Return the coordinates of a row by their names."""
        return dict(self.transform_many(_as_frame(x)).iloc[0])

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the coordinates of rows, with the index of X."""
        if not self._features:
            return pd.DataFrame(index=X.index)
        coordinates = self._pca.transform(self._values(X))
        return pd.DataFrame(coordinates, index=X.index, columns=self._pca.get_feature_names_out())

    def _values(self, X: pd.DataFrame) -> Any:
        """Return the values of the learned features (n, d), in their order; NaN for an absent one."""
        return X.reindex(columns=self._features).to_numpy(np.float64, na_value=np.nan)


def _as_frame(x: dict[Any, Any]) -> pd.DataFrame:
    # A frame of one column that is transposed takes less time than a frame that is made of one row.
    return pd.Series(x, dtype=np.float64).to_frame().T

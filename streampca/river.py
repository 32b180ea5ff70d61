"""`RiverPCA`: streaming PCA as a transformer of river. Needs the extra `river`."""

from typing import Any

import numpy as np
import pandas as pd
from river.base import MiniBatchTransformer

from streampca import StreamingPCA


class RiverPCA(MiniBatchTransformer):
    """Streaming PCA of the features that the first row has; the parameters are those of `StreamingPCA`.

    A feature that a later row lacks is NaN, which missing="impute" fills; others are ignored. There are no coordinates
    before the first row.
    """

    def __init__(self, n_components: Any = None, **parameters: Any) -> None:
        self.n_components, self.parameters = n_components, parameters
        self._pca = StreamingPCA(n_components, **parameters)
        self._features: list[Any] = []

    def learn_one(self, x: dict[Any, Any]) -> None:
        """Learn a row: values by the names of features."""
        self.learn_many(_frame(x))

    def learn_many(self, X: pd.DataFrame) -> None:
        """Learn rows, as `learn_one` each of them, to the bit, but quicker."""
        self._features = self._features or sorted(X.columns, key=str)
        self._pca.partial_fit(self._values(X))

    def transform_one(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """The coordinates of a row."""
        return dict(self.transform_many(_frame(x)).iloc[0])

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The coordinates of rows, with their index."""
        if not self._features:
            return pd.DataFrame(index=X.index)
        return pd.DataFrame(self._pca.transform(self._values(X)), X.index, self._pca.get_feature_names_out())

    def _values(self, X: pd.DataFrame) -> Any:
        return X.reindex(columns=self._features).to_numpy(np.float64, na_value=np.nan)


def _frame(x: dict[Any, Any]) -> pd.DataFrame:
    return pd.Series(x, dtype=np.float64).to_frame().T  # quicker than by rows

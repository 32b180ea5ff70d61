"""`RiverPCA`: streaming PCA as a transformer of river. Needs the extra `river`."""

from typing import Any

import numpy as np

from streampca import StreamingPCA
from streampca.errors import describe_missing_package
from streampca.pca.arrays import fill_nulls, is_null

try:
    import pandas as pd
    from river.base import MiniBatchTransformer
except ModuleNotFoundError as error:
    raise ImportError(describe_missing_package(str(error.name), "river", needed_by="RiverPCA")) from error


class RiverPCA(MiniBatchTransformer):
    """Streaming PCA of the features that the first row has. The parameters are those of `StreamingPCA`.

    If a later row lacks one of these features, its value is NaN, which missing="impute" fills. If it has further
    features, they are ignored. Before the first row is learned, a row has no coordinates.
    """

    def __init__(self, n_components: Any = None, **parameters: Any) -> None:
        self.n_components = n_components
        self.parameters = parameters
        self._pca = StreamingPCA(n_components, **parameters)
        self._features: list[Any] = []

    def __repr__(self) -> str:
        """Return the call that makes a transformer with these parameters."""
        parameters = {"n_components": self.n_components, **self.parameters}
        return f"RiverPCA({', '.join(f'{name}={value!r}' for name, value in parameters.items())})"

    def learn_one(self, x: dict[Any, Any]) -> None:
        """Learn a row, a dictionary of values by feature. Raises ValueError if one is not a number."""
        self.learn_many(self._create_frame(x))

    def learn_many(self, X: pd.DataFrame) -> None:
        """Learn rows. Bit for bit the same as `learn_one` of each row, and quicker.

        Raises ValueError if a value is not a number.
        """
        if not self._features:
            self._features = sorted(X.columns, key=str)
        self._pca.partial_fit(self._select_features(X))

    def transform_one(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """Return the coordinates of a row by their names."""
        return dict(self.transform_many(self._create_frame(x)).iloc[0])

    def transform_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return the coordinates of rows, with the index of X."""
        if not self._features:
            return pd.DataFrame(index=X.index)
        coordinates = self._pca.transform(self._select_features(X))
        return pd.DataFrame(coordinates, index=X.index, columns=self._pca.get_feature_names_out())

    def _select_features(self, X: pd.DataFrame) -> Any:
        """Return the values of the learned features (n, d), with NaN for an absent feature."""
        selected = fill_nulls(X.reindex(columns=self._features))
        try:
            # `na_value` replaces nulls of pandas' number types.
            return selected.to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError):
            for feature in self._features:
                _require_numbers(feature, selected[feature])
            raise  # no single feature explains the error

    def _create_frame(self, x: dict[Any, Any]) -> pd.DataFrame:
        """Return a frame with this row, without features that were not learned; nulls become NaN.

        Raises ValueError if a value is not a number.
        """
        row = x
        if self._features:
            row = {feature: x[feature] for feature in self._features if feature in x}
        try:
            # An optimisation: `pd.DataFrame([row])` is slower than a series, transposed.
            return pd.Series(row, dtype=np.float64).to_frame().T
        except (TypeError, ValueError):  # a value is null or not a number
            filled = {feature: np.nan if is_null(value) else value for feature, value in row.items()}
            for feature, value in filled.items():
                _require_numbers(feature, pd.Series([value]))
            return pd.Series(filled, dtype=np.float64).to_frame().T


def _require_numbers(feature: Any, values: pd.Series) -> None:
    """Raise ValueError with the name of a feature if its values are not numbers."""
    try:
        values.to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the feature {feature!r} is not a number: {error}") from None

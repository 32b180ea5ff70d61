"""Finds a dimension with more than 90 % of the total variance: it may be an id, or have another unit than the rest.

The first component of such a stream is nearly this dimension alone, and explains nearly everything.
"""

from collections.abc import Sequence

import numpy as np

from streampca.errors import list_names
from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import Array

_LARGEST_SHARE = 0.9  # of the total variance; a dimension with a larger share is named
_FEWEST_VECTORS = 30  # of fewer vectors, the variances of alike dimensions may differ that much by chance


def describe_dominant_dimension(published: PublishedModel) -> str:
    """Return a warning if one dimension of a model has more than 90 % of the total variance; otherwise ""."""
    model = published.model
    if model.scale is not None:  # the stream is standardised: units do not matter
        return ""
    # The variance of each dimension, from the components alone: they hold nearly all variance of a dominant dimension.
    variances = model.explained_variance @ np.square(model.components)
    return describe_dominant_variance(
        variances=variances,
        total_variance=model.total_variance,
        vector_count=model.weight,  # with a half-life, old vectors do not count
        names=published.names,
    )


def describe_dominant_variance(
    variances: Array, total_variance: float, vector_count: float, names: Sequence[str] | None
) -> str:
    """Return a warning if one dimension has more than 90 % of the total variance; otherwise ""."""
    if len(variances) == 1 or vector_count < _FEWEST_VECTORS:
        return ""
    largest = int(np.argmax(variances))
    dominates = variances[largest] > _LARGEST_SHARE * total_variance
    if not dominates:
        return ""
    name = list_names([names[largest]]) if names else f"{largest} (counted from 0)"
    share = variances[largest] / total_variance
    return (
        f"dimension {name} has {share:.2%} of the total variance, so the components show little else: leave it out of "
        "field if it is an id, or set standardize if it has another unit"
    )

"""From what was learned to a model to use."""

from streampca.pca import axes
from streampca.pca.model import Array, Model
from streampca.pca.state import State


def model_of(state: State, components: int, reference: Array | None = None) -> Model:
    """The k leading components of a state; signs as in `reference` (rows of components), where one is given."""
    rows, variance = axes.principal(state.C, components)
    if reference is not None and reference.shape[1] == rows.shape[1]:
        rows = axes.keep_signs(rows, reference)
    return Model(rows, variance, state.mean, state.total_variance, state.weight)

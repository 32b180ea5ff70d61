"""Restores the fold of a model from its file, so that learning can continue."""

from dataclasses import replace

from streampca.fold import checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.pca import axes


def restore_fold(published: PublishedModel, config: FoldConfig) -> Fold:
    """Return the fold that has learned the messages of a model, for learning with this configuration.

    The file of a `StreamingPCA` holds this fold. From all other files it is estimated. Raises `DamagedFileError`.
    """
    if published.checkpoint is None:
        return _estimate_fold(published, config)
    saved = checkpoint.decode(published.checkpoint)
    if FoldConfig.from_dict(saved.settings).learning == config.learning:
        return saved.fold
    # The fold was learned with another configuration. For example, `StreamingPCA(n_components=0.9)` learns all
    # components, but its model has fewer.
    return saved.fold.adapt_to(config.learning)


def _estimate_fold(published: PublishedModel, config: FoldConfig) -> Fold:
    """Return a fold that could have led to a model, estimated from the model."""
    empty = Fold.empty(config.learning)
    message_count = published.version
    state = axes.restore_state(
        published.model,
        covariance_or_axes=published.covariance_or_axes,
        known_shares=published.known,
        count=message_count,
        config=config.learning,
    )
    return replace(empty, state=state, stats=replace(empty.stats, learned=message_count))

"""Restores the fold from which learning continues after the model of a file."""

from dataclasses import replace

from streampca.fold import checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.pca import axes


def restore_fold(published: PublishedModel, config: FoldConfig) -> Fold:
    """Return the fold that has learned the messages of a model, for learning with this configuration.

    The file of an estimator holds the fold itself, so learning continues without a break. The file of `streampca fit`
    holds the state in single precision, and the file of a worker's model only the axes, from which the state is
    estimated. Raises `DamagedFileError` if the estimator's fold cannot be read.
    """
    if published.checkpoint is None:
        return _restore_by_model(published, config)
    kept = checkpoint.decode(published.checkpoint)
    # The settings of the fold and of the model differ if the estimator chose the number of components by the variance.
    # Then the fold has learned all components, but learning continues with the chosen number, which the model has.
    has_same_settings = FoldConfig.from_dict(kept.settings).learning == config.learning
    return kept.fold if has_same_settings else kept.fold.adapt_to(config.learning)


def _restore_by_model(published: PublishedModel, config: FoldConfig) -> Fold:
    """Return the fold that has learned the messages of a model, as far as the model says what was learned."""
    empty = Fold.empty(config.learning)
    message_count = published.version
    state = axes.restore_state(published.model, published.continuation, published.known, message_count, config.learning)
    return replace(empty, state=state, stats=replace(empty.stats, learned=message_count))

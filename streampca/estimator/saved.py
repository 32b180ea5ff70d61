"""The file of an estimator: a model file that also holds the fold and the parameters of the estimator.

So what serves or projects a model file takes it, and learning continues from it without a break.
"""

import time
from dataclasses import replace
from typing import Any

from streampca.estimator.attributes import OnlineFit
from streampca.fold import checkpoint, model_file
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import FoldConfig
from streampca.fold.merging import MergedFold
from streampca.fold.model_file import PublishedModel


def encode(estimator: Any) -> bytes:
    """Return the bytes of the file of a fitted estimator.

    Raises `ValueError` if a file cannot hold the name of a feature.
    """
    fit: OnlineFit = estimator.online_
    # `loaded_model` is set if the model comes from a file without a fold and has learned no rows since. Such a model is
    # written unchanged.
    published = fit.loaded_model or _make_published_model(fit)
    names = getattr(estimator, "feature_names_in_", None)
    dtype = fit.parameters["dtype"]
    if dtype is not None:  # perhaps np.float32, which a file cannot hold
        dtype = fit.config.learning.dtype  # the name of the type
    # Parameters that decide what is learned are taken as they were when fitting began. They are in the settings of the
    # model, except these two (see `find_parameters`). All other parameters may have been set since.
    parameters = {
        "n_components": fit.parameters["n_components"],
        "dtype": dtype,
        "whiten": estimator.whiten,
        "copy": estimator.copy,
        "batch_size": estimator.batch_size,
    }
    return model_file.encode(replace(published, names=None if names is None else names.tolist(), estimator=parameters))


def _make_published_model(fit: OnlineFit) -> PublishedModel:
    """Return the model of a fit, together with the checkpoint of its fold."""
    # The model may have fewer components than were learned, so its settings differ from those of the fold.
    model_learning = replace(fit.config.learning, components=fit.model.n_components)
    model_config = replace(fit.config, learning=model_learning)
    merged = MergedFold.from_fold(fit.fold, fit.config)
    published = merged.make_published_model(model_config, fit.past_scores.histograms, published_at=time.time())
    # From this checkpoint, learning continues with all learned components. An estimator has no topic.
    saved = Checkpoint(topic="", topic_id="", partition=0, fold=fit.fold, settings=fit.config.as_dict())
    return replace(published, checkpoint=checkpoint.encode(saved))


def find_parameters(published: PublishedModel) -> dict[str, Any]:
    """Return the parameters of an estimator for a file.

    The parameters are derived from the settings with which the model in the file was learned. If an estimator has
    written the file, the parameters that it has saved there replace them.
    """
    config = FoldConfig.from_dict(published.settings)
    learning = config.learning
    parameters = {
        "n_components": learning.components,
        "oversampling": learning.oversampling,
        "half_life": config.half_life_messages,
        "center": learning.center,
        "standardize": learning.standardize,
        "warm_up": learning.warm_up,
        "dtype": learning.dtype,
        "missing": published.settings["missing"],
        "missing_values": list(published.missing_values.numbers) or None,
    }
    saved_parameters = published.estimator or {}  # none unless an estimator has written the file
    return parameters | saved_parameters


def find_config(published: PublishedModel) -> FoldConfig:
    """Return the configuration with which the fold or the model in a file was learned."""
    if published.checkpoint is None:
        return FoldConfig.from_dict(published.settings)
    return FoldConfig.from_dict(checkpoint.decode(published.checkpoint).settings)

"""The model of folds, as it is published: the one maker for worker and `streampca fit`."""

from streampca.fold.fold import FoldConfig
from streampca.fold.merging import Merged
from streampca.fold.model_file import PublishedModel
from streampca.pca.axes import model_of
from streampca.pca.scoring import Calibration


def published_model(
    merged: Merged,
    fold_config: FoldConfig,
    past_scores: Calibration,
    published_at: float,
    previous: PublishedModel | None = None,
) -> PublishedModel:
    """The next version, a function of its arguments; `published_at` is in seconds since 1970.

    The signs of its axes follow the previous version, so that coordinates do not flip.
    """
    stats, error, signs = merged.stats, merged.error, previous.model.components if previous else None
    return PublishedModel(
        version=stats.learned,
        model=model_of(merged.state, fold_config.learning.components, signs),
        topic=merged.topic,
        topic_id=merged.topic_id,
        positions=merged.positions,
        rejected=sum(stats.rejected.values()),
        loss=stats.loss if stats.with_loss else None,
        loss_ratio=stats.loss_ratio,
        loss_ewma=(stats.recent_loss or 0.0) if stats.with_loss else None,
        partition_losses=merged.losses,
        first_timestamp_ms=stats.first_ms,
        last_timestamp_ms=stats.last_ms,
        published_at=published_at,
        settings=fold_config.as_dict(),
        subspace_error=error.subspace if error else None,
        axis_errors=error.axes.tolist() if error else None,
        calibration=past_scores if past_scores.weight else None,
    )

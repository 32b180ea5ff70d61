"""Creates the configuration with which a worker, `streampca backfill` and `streampca audit` learn."""

from streampca.errors import SettingsError
from streampca.fold import npz
from streampca.fold.fold import FoldConfig
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.learning import LearningConfig
from streampca.settings.commands import WorkerSettings
from streampca.settings.field_paths import dimension_names
from streampca.sources.schema_registry import create_schemas
from streampca.worker.checkpointer import WorkerConfig


def create_worker_config(settings: WorkerSettings) -> WorkerConfig:
    """Create the configuration of a worker from its settings.

    Raises `SettingsError` if two dimensions have the same name, or if a name is too long.
    """
    learning_config = LearningConfig(
        dimensions=settings.dimensions,
        components=settings.components,
        oversampling=settings.oversampling,
        center=settings.center,
        dtype=settings.model_dtype,
        impute=settings.missing == "impute",
        missing_values=settings.missing_values,
        standardize=settings.standardize,
    )
    # Paths such as x,y also name the dimensions. Positions of CSV cells do not, so `field_with_names` is "" for CSV.
    names = dimension_names(settings.field_with_names, settings.dimensions)
    if not npz.are_valid_names(names, settings.dimensions):
        raise SettingsError(f"field: names must differ and have at most {npz.MAX_NAME} characters")
    return WorkerConfig(
        topic=settings.topic,
        fold=FoldConfig(
            learning=learning_config,
            half_life_messages=settings.half_life_messages,
            half_life_seconds=settings.half_life_seconds,
            format=settings.format_name,
            field=settings.field,
            where=settings.where,
            names=names,
        ),
        codec=Codec(
            settings.format,
            Judge.of(learning_config),  # says which vectors may be learned
            field=settings.field,
            schemas=create_schemas(settings),
            where=settings.where,
        ),
        on_bad_record=settings.bad_record_policy,
        on_offset_gap=settings.on_offset_gap,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        start=settings.start_at,
    )

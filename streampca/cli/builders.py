"""From settings to the parts of a worker and of transform: for the commands that run them, and those that check."""

from typing import TYPE_CHECKING

from streampca.errors import SettingsError
from streampca.fold import npz
from streampca.fold.model_file import PublishedModel
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.settings.commands import TransformSettings, WorkerSettings
from streampca.settings.field_paths import dimension_names
from streampca.sources.schema_registry import create_schemas
from streampca.stores.model_cache import ModelCache
from streampca.stores.pins import Pins
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields

if TYPE_CHECKING:
    from streampca.worker.checkpointer import WorkerConfig


def create_worker_config(settings: WorkerSettings) -> "WorkerConfig":
    """The part of the settings that the worker's loop uses."""
    # Here: these import numba, without which transform starts in half the time.
    from streampca.fold.fold import FoldConfig
    from streampca.pca.learning import LearningConfig
    from streampca.worker.checkpointer import WorkerConfig

    learning_config = LearningConfig(
        settings.dimensions,
        settings.components,
        settings.oversampling,
        settings.center,
        settings.model_dtype,
        impute=settings.missing == "impute",
        standardize=settings.standardize,
    )
    names = dimension_names(settings.field, settings.dimensions)
    if not npz.are_names(names, settings.dimensions):
        raise SettingsError(f"field: names must differ and have at most {npz.MAX_NAME} characters")
    return WorkerConfig(
        topic=settings.topic,
        fold=FoldConfig(
            learning_config,
            settings.half_life_messages,
            settings.half_life_seconds,
            settings.format_name,
            settings.field,
            names,
        ),
        codec=Codec(settings.format, Judge.of(learning_config), settings.field, create_schemas(settings)),
        on_bad_record=settings.bad_record_policy,
        on_offset_gap=settings.on_offset_gap,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        start=settings.start_at,
    )


def create_current_model(settings: TransformSettings, cache: ModelCache, pins: Pins) -> CurrentModel:
    """The model that records are projected with, from a cache of the topic's models."""
    p_below = settings.only_p_below or 1.0 if create_output_fields(settings).needs_past_scores else None
    return CurrentModel(
        cache, settings.model_version, settings.output_topic, p_below=p_below, field=settings.field, pins=pins.all
    )


def create_output_fields(settings: TransformSettings, *, named: bool = False) -> OutputFields:
    """The fields of an output; `named` says whether the model's dimensions have names."""
    return OutputFields(settings.emitted, settings.basis, settings.only_p_below is not None, named)


def create_codec(settings: TransformSettings, model: PublishedModel) -> Codec:
    """Decodes the vectors that a model projects. Raises `SettingsError` if a package is missing."""
    judge = Judge.of_projected(model.model.dimensions, settings.vector_dtype, impute=model.impute)
    several = settings.output_format not in ("avro", "protobuf")
    return Codec(settings.format, judge, settings.field, create_schemas(settings), several)

"""Models that a test can construct from their version alone."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from streampca.fold import checkpoint, model_file, npz
from streampca.fold.model_file import ModelStats
from streampca.fold.stats import FoldStats
from streampca.pca.arrays import Array
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.process.metrics import StoreMetrics
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.served_models import ServedModels
from streampca.stores.base import Store
from streampca.stores.directory import DirectoryStore
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models

TOPIC = "readings"
D, K = 5, 2
_FORMAT_VERSIONS = {"checkpoint": checkpoint.FORMAT_VERSION, "model": model_file.FORMAT_VERSION}


def example_model(version: int, d: int = D, k: int = K, dtype: Any = np.float64) -> Model:
    chance = np.random.default_rng(version)
    axes = np.linalg.qr(chance.normal(size=(d, k)))[0].T
    variance = np.sort(chance.uniform(0.5, 4.0, size=k))[::-1]
    return Model(
        np.ascontiguousarray(axes, dtype),
        np.ascontiguousarray(variance, dtype),
        chance.normal(size=d).astype(dtype),
        float(variance.sum() * 2),
        float(version),
    )


def stats_of(**figures: Any) -> ModelStats:
    """The stats of a model; those that are not given are as before the first message."""
    return FoldStats.total([]).summarise_for_model().model_copy(update=figures)


def with_stats(published: model_file.PublishedModel, **figures: Any) -> model_file.PublishedModel:
    return replace(published, stats=published.stats.model_copy(update=figures))


def numbered(version: int, published_at: float | None = None, **model: Any) -> model_file.PublishedModel:
    """The published model of this version."""
    return model_file.PublishedModel(
        version=version, model=example_model(version, **model), topic=TOPIC, topic_id="id",
        stats=stats_of(
            rejected=1, loss=0.5, loss_ratio=0.25, loss_ewma=0.125, first_timestamp_ms=1, last_timestamp_ms=2
        ),
        positions={0: 3, 1: version}, published_at=time.time() if published_at is None else published_at,
        settings={"components": K},
    )  # fmt: skip


def empty_models(store: Store) -> Models:
    """The models of the topic, of which ten are kept."""
    return Models(store, TOPIC, keep=10)


def save(models: Models, *versions: int) -> None:
    for version in versions:
        models.save(numbered(version))


def standardised(published: model_file.PublishedModel) -> model_file.PublishedModel:
    """The model as one of a standardised stream, in different units."""
    scale = 2.0 ** np.arange(-2, published.model.dimensions - 2)
    settings = published.settings | {"standardize": True}
    return replace(published, model=replace(published.model, scale=scale), settings=settings)


def with_past_scores(published: model_file.PublishedModel, vectors: Array) -> model_file.PublishedModel:
    """The model with the scores of these vectors, so that it computes p-values."""
    scores = published.model.project(vectors).relative_scores
    return replace(published, past_scores=PastScores.empty().with_scores(scores))


def sidecar_registry() -> CollectorRegistry:
    """The metrics of a sidecar without a model."""
    return SidecarMetrics(ServedModels(Models(MemoryStore(), TOPIC)), TOPIC, StoreMetrics()).registry


def models_in(folder: Path, topic: str = TOPIC, **options: int) -> Models:
    """The models of a topic in a folder."""
    return Models(DirectoryStore(folder), topic, **options)


def file_of(version: int) -> str:
    return f"models/{TOPIC}/{version:020d}.npz"


def newer(data: bytes, kind: str) -> bytes:
    """The same file, a checkpoint or a model, as a newer release would write it."""
    return of_format(_FORMAT_VERSIONS[kind] + 1, data, kind)


def of_format(version: int, data: bytes, kind: str) -> bytes:
    """The same file, a checkpoint or a model, with the number of another format."""
    header, arrays = npz.decode(data, kind, _FORMAT_VERSIONS[kind])
    return npz.encode(header | {"format_version": version}, arrays)

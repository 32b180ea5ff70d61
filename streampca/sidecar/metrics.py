"""The sidecar's Prometheus metrics."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TypeVar

from prometheus_client import Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from streampca.process.metrics import LabelledRegistry, StoreMetrics
from streampca.sidecar.served_models import ServedModels

LIMITS = ("body_bytes", "rows", "numbers", "memory", "body_time", "read_time")
_DURATION_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_GAUGES = (  # name, help text, attribute of the model in use
    ("streampca_model_version", "Version of the model in use: messages learned.", "version"),
    (
        "streampca_model_loss_mean", "Mean squared residual of the model in use, messages scored before learned.",
        "stats.loss",
    ),
    ("streampca_model_loss_ratio", "The loss divided by the mean squared norm.", "stats.loss_ratio"),
    ("streampca_model_loss_ewma", "The loss ratio over the last 1000 messages or so.", "stats.loss_ewma"),
    (
        "streampca_model_subspace_error", "Estimated sum of squared sines of the angles to the true subspace, 0 to k.",
        "subspace_error",
    ),
)  # fmt: skip

_DRIFT_TEXTS = {  # a field of `Drift` → the metric's help text
    "angle_radians": "Largest principal angle between newest and pinned axes.",
    "explained_variance_ratio": "Share of new messages' variance along pinned axes, as expected by the newest model.",
    "newest_explained_variance_ratio": "The same along the newest axes.",
    "mean_shift_ratio": "Squared shift of the mean, by the pinned total variance.",
}

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


class SidecarMetrics(Collector):
    """Counts requests and vectors, and reads the metrics of the model in use at each scrape.

    Every metric has the topic as a label.
    """

    def __init__(self, models: ServedModels, topic: str, store: StoreMetrics) -> None:
        self._models = models
        self.registry = LabelledRegistry("sidecar", topic=topic)
        self.registry.register(self)  # the registry then calls `collect`, which reports the served models
        store.register(self.registry)
        vectors = Counter(
            "streampca_vectors_total", "Vectors projected, reconstructed or scored, by operation.", ["operation"],
            registry=self.registry,
        )  # fmt: skip
        self.vectors = {operation: vectors.labels(operation) for operation in ("project", "reconstruct", "score")}
        limits = Counter(
            "streampca_limits_reached_total", "Requests refused or ended because they reached a limit.", ["limit"],
            registry=self.registry,
        )  # fmt: skip
        self.limits = {limit: limits.labels(limit) for limit in LIMITS}
        durations = Histogram(
            "streampca_request_duration_seconds", "Duration of requests, by route and status code.", ["route", "code"],
            registry=self.registry, buckets=_DURATION_BUCKETS_S,
        )  # fmt: skip
        # The cache is an optimisation: `labels` takes longer than `observe`.
        self.durations = cache(durations.labels)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self, accept: str, names: Sequence[str] = ()) -> tuple[bytes, str]:
        """Return the text of the metrics with these names, or of all, and its content type."""
        encode, content_type = choose_encoder(accept)
        registry = self.registry.restricted_registry(names) if names else self.registry
        return encode(registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the model in use. Without a model, they have no samples."""
        in_use = self._models.cache.current
        for name, text, attribute in _GAUGES:
            value = attrgetter(attribute)(in_use) if in_use else None
            yield GaugeMetricFamily(name, text, value)
        yield GaugeMetricFamily(
            "streampca_model_age_seconds",
            "Time since this sidecar found the model in use.",
            self._models.compute_age_s(),
        )
        yield _create_component_gauge(
            "streampca_model_explained_variance_ratio",
            "Share of the variance along each component, counted from 1.",
            in_use.model.explained_variance_ratio if in_use else None,
        )
        yield _create_component_gauge(
            "streampca_model_axis_error_radians",
            "Estimated standard error of each component's axis, counted from 1.",
            in_use.axis_errors if in_use else None,
        )
        yield from self._collect_drifts()
        failures = CounterMetricFamily(
            "streampca_model_load_failures_total", "Failed model loads, by cause: damaged, unreadable, store or bug.",
            labels=["cause"],
        )  # fmt: skip
        count_by_cause = {
            cause: self._models.cache.failures[cause] for cause in ("damaged", "unreadable", "store", "bug")
        }
        yield _add_samples(failures, count_by_cause)

    def _collect_drifts(self) -> Iterator[Metric]:
        """Yield the metrics of how far the newest model has moved from each pinned model."""
        for field, text in _DRIFT_TEXTS.items():
            gauge = GaugeMetricFamily(f"streampca_drift_{field}", text, labels=["pin"])
            value_by_pin = {pin: drift[field] for pin, drift in self._models.drifts.items()}
            yield _add_samples(gauge, value_by_pin)
        outdated = GaugeMetricFamily(
            "streampca_drift_outdated", "1 if the pinned model no longer fits the stream, else 0.", labels=["pin"]
        )
        reasons_by_pin = {pin: drift["outdated"] for pin, drift in self._models.drifts.items()}
        yield _add_samples(outdated, {pin: 1.0 if reasons else 0.0 for pin, reasons in reasons_by_pin.items()})


def _create_component_gauge(name: str, text: str, values: Iterable[float] | None) -> GaugeMetricFamily:
    """Return a metric with a sample for each component. If the values are None, the metric has no samples."""
    gauge = GaugeMetricFamily(name, text, labels=["component"])
    if values is None:
        return gauge
    return _add_samples(gauge, {str(number): float(value) for number, value in enumerate(values, start=1)})


def _add_samples(metric: Family, values: Mapping[str, float]) -> Family:
    """Add a sample for each value, labelled by its key, and return the metric."""
    for label, value in values.items():
        metric.add_metric([label], value)
    return metric

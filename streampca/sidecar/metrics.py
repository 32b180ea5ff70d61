"""The sidecar's Prometheus metrics."""

from collections.abc import Iterator, Mapping, Sequence
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
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

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

_DRIFT = {  # a field of `Drift` → the metric's help text
    "angle_radians": "Largest principal angle between newest and pinned axes.",
    "explained_variance_ratio": "Share of new messages' variance along pinned axes, as expected by the newest model.",
    "newest_explained_variance_ratio": "The same along the newest axes.",
    "mean_shift_ratio": "Squared shift of the mean, by the pinned total variance.",
}

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


class SidecarMetrics(Collector):
    """Counters of requests and vectors; the metrics of the model in use are read at each scrape. All have the topic."""

    def __init__(self, models: ServedModels, topic: str, store: StoreMetrics) -> None:
        self._models, self.registry = models, LabelledRegistry("sidecar", topic=topic)
        self.registry.register(self)
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
            registry=self.registry, buckets=_BUCKETS,
        )  # fmt: skip
        self.durations = cache(durations.labels)  # a lookup by labels costs more than the observation
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def text(self, accept: str, names: Sequence[str] = ()) -> tuple[bytes, str]:
        """These metrics (none: all) in the format that the scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry.restricted_registry(names) if names else self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """The metrics of the model in use, so that none is stale; without samples as long as there is none."""
        used = self._models.cache.current
        for name, text, attribute in _GAUGES:
            yield GaugeMetricFamily(name, text, attrgetter(attribute)(used) if used else None)
        yield GaugeMetricFamily(
            "streampca_model_age_seconds", "Time since the model in use was published.", self._models.age_s()
        )
        ratios = used.model.explained_variance_ratio if used else None
        for name, text, values in (
            ("explained_variance_ratio", "Share of the variance along each component, counted from 1.", ratios),
            (
                "axis_error_radians", "Estimated standard error of each component's axis, counted from 1.",
                used.axis_errors if used else None,
            ),
        ):  # fmt: skip
            by_number = {} if values is None else {str(i): float(value) for i, value in enumerate(values, start=1)}
            yield _filled(GaugeMetricFamily(f"streampca_model_{name}", text, labels=["component"]), by_number)
        for field, text in _DRIFT.items():
            drifts = {name: drift[field] for name, drift in self._models.drifts.items()}
            yield _filled(GaugeMetricFamily(f"streampca_drift_{field}", text, labels=["pin"]), drifts)
        failures = CounterMetricFamily(
            "streampca_model_load_failures_total", "Failed model loads, by cause: damaged, store or bug.",
            labels=["cause"],
        )  # fmt: skip
        yield _filled(failures, {cause: self._models.cache.failures[cause] for cause in ("damaged", "store", "bug")})


def _filled(family: Family, values: Mapping[str, float]) -> Family:
    """Add a sample for each value of the label, and return the family."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family

"""The sidecar's Prometheus metrics. `METRICS` lists all of them with their help texts."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from streampca.metrics import STORE_METRICS, LabelledRegistry, StoreMetrics
from streampca.stores.model_cache import ModelCache
from streampca.stream.model_file import PublishedModel

METRICS = {
    "streampca_model_version": "Version of the model in use: messages learned.",
    "streampca_model_age_seconds": "Time since the model in use was published.",
    "streampca_model_loss_mean": "Mean squared residual of the model in use, messages scored before learned.",
    "streampca_model_loss_ratio": "The loss divided by the mean squared norm.",
    "streampca_model_loss_ewma": "The loss ratio over the last 1000 messages or so.",
    "streampca_model_explained_variance_ratio": "Share of the variance along each component, counted from 1.",
    "streampca_model_subspace_error": "Estimated sum of squared sines of the angles to the true subspace, 0 to k.",
    "streampca_model_axis_error_radians": "Estimated standard error of each component's axis, counted from 1.",
    "streampca_model_load_failures_total": "Failed model loads, by cause: damaged, store or bug.",
    "streampca_projected_vectors_total": "Vectors projected, reconstructed or scored, by act.",
    "streampca_limits_reached_total": "Requests refused or ended because they reached a limit.",
    "streampca_request_duration_seconds": "Duration of requests, by route and status code.",
    **STORE_METRICS,
}

_FIGURES: dict[str, Callable[[PublishedModel], float | None]] = {
    "streampca_model_version": lambda published: published.version,
    "streampca_model_loss_mean": lambda published: published.loss,
    "streampca_model_loss_ratio": lambda published: published.loss_ratio,
    "streampca_model_loss_ewma": lambda published: published.loss_ewma,
    "streampca_model_subspace_error": lambda published: published.subspace_error,
}
LIMITS = ("body_bytes", "rows", "numbers", "memory", "loads", "body_time", "read_time")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SidecarMetrics:
    """Counts requests and vectors, and reads the metrics of the model in use at each scrape; all with the topic."""

    def __init__(self, cache: ModelCache, topic: str, store: StoreMetrics) -> None:
        self._registry = LabelledRegistry(topic=topic)
        self._registry.register(_ModelCollector(cache))
        store.register(self._registry)
        self._durations = self._histogram("streampca_request_duration_seconds", ["route", "code"])
        self._series: dict[tuple[str, int], Histogram] = {}
        vectors = self._counter("streampca_projected_vectors_total", ["act"])
        self._vectors = {act: vectors.labels(act) for act in ("project", "reconstruct", "score")}
        limits = self._counter("streampca_limits_reached_total", ["limit"])
        self._limits = {limit: limits.labels(limit) for limit in LIMITS}
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def observe_request(self, route: str, code: int, seconds: float) -> None:
        """Count and time one request."""
        series = self._series.get((route, code))
        if series is None:  # a lookup by labels costs more than the observation
            series = self._series[route, code] = self._durations.labels(route, str(code))
        series.observe(seconds)

    def count_vectors(self, act: str, vectors: int) -> None:
        """Count the vectors of one request."""
        self._vectors[act].inc(vectors)

    def count_limit(self, limit: str) -> None:
        """Count one request that reached one of `LIMITS`."""
        self._limits[limit].inc()

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that the scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _histogram(self, name: str, labels: list[str]) -> Histogram:
        return Histogram(name, METRICS[name], labels, registry=self._registry, buckets=_BUCKETS)

    def _counter(self, name: str, labels: list[str]) -> Counter:
        return Counter(name, METRICS[name], labels, registry=self._registry)


class _ModelCollector(Collector):
    """The metrics of the model in use, read at each scrape so that none is stale."""

    def __init__(self, cache: ModelCache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        published = self._cache.current
        for name, figure in _FIGURES.items():
            yield _gauge(name, None if published is None else figure(published))
        yield _gauge("streampca_model_age_seconds", self._cache.age_s())
        ratios = None if published is None else published.model.explained_variance_ratio
        yield _by_component("streampca_model_explained_variance_ratio", ratios)
        errors = None if published is None else published.axis_errors
        yield _by_component("streampca_model_axis_error_radians", errors)
        yield self._failures()

    def _failures(self) -> Metric:
        name = "streampca_model_load_failures_total"
        family = CounterMetricFamily(name, METRICS[name], labels=["cause"])
        for cause in ("damaged", "store", "bug"):
            family.add_metric([cause], self._cache.failures[cause])
        return family


def _by_component(name: str, values: Iterable[float] | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, METRICS[name], labels=["component"])
    for i, value in enumerate([] if values is None else values, start=1):
        family.add_metric([str(i)], float(value))
    return family


def _gauge(name: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, METRICS[name])
    if value is not None:
        family.add_metric([], value)
    return family

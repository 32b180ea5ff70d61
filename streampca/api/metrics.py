"""The sidecar's metrics for Prometheus, in a registry of its own. `METRICS` is all of them, with their meaning."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from streampca.api.model_cache import ModelCache
from streampca.stream.model_file import PublishedModel

METRICS = {
    "streampca_model_version": "Version of the model in use: messages learned.",
    "streampca_model_age_seconds": "Time since the model in use was published.",
    "streampca_model_loss_mean": "Mean squared residual of the model in use, of messages scored before learned.",
    "streampca_model_loss_ratio": "The same over the mean squared norm.",
    "streampca_model_loss_ewma": "The same ratio over the last 1000 messages or so.",
    "streampca_model_explained_variance_ratio": "Share of the variance along each component, from 1.",
    "streampca_model_load_failures_total": "Times that a model could not be loaded, by cause: damaged, store or bug.",
    "streampca_projected_vectors_total": "Vectors projected or reconstructed, by what was done.",
    "streampca_request_duration_seconds": "Time to answer a request, by route and status code.",
}

_FIGURES: dict[str, Callable[[PublishedModel], float | None]] = {
    "streampca_model_version": lambda served: served.version,
    "streampca_model_loss_mean": lambda served: served.loss,
    "streampca_model_loss_ratio": lambda served: served.loss_ratio,
    "streampca_model_loss_ewma": lambda served: served.loss_ewma,
}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SidecarMetrics:
    """Counts what is answered, and shows the model in use when it is asked."""

    def __init__(self, serving: ModelCache) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ModelCollector(serving))
        self._durations = self._histogram("streampca_request_duration_seconds", ["route", "code"])
        self._series: dict[tuple[str, int], Histogram] = {}
        vectors = self._counter("streampca_projected_vectors_total", ["act"])
        self._vectors = {act: vectors.labels(act) for act in ("project", "reconstruct")}
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def answered(self, route: str, code: int, seconds: float) -> None:
        """One request."""
        series = self._series.get((route, code))
        if series is None:  # asking for a series by its labels takes longer than counting in it
            series = self._series[route, code] = self._durations.labels(route, str(code))
        series.observe(seconds)

    def took(self, act: str, vectors: int) -> None:
        """So many vectors in one request."""
        self._vectors[act].inc(vectors)

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and the content type, as the scraper accepts it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _histogram(self, name: str, labels: list[str]) -> Histogram:
        return Histogram(name, METRICS[name], labels, registry=self._registry, buckets=_BUCKETS)

    def _counter(self, name: str, labels: list[str]) -> Counter:
        return Counter(name, METRICS[name], labels, registry=self._registry)


class _ModelCollector(Collector):
    """The model in use, looked at when it is scraped, so that nothing can be stale."""

    def __init__(self, serving: ModelCache) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        served = self._serving.current
        for name, figure in _FIGURES.items():
            yield _gauge(name, None if served is None else figure(served))
        yield _gauge("streampca_model_age_seconds", self._serving.age_s())
        yield self._ratios(served)
        yield self._failures()

    def _ratios(self, served: PublishedModel | None) -> Metric:
        name = "streampca_model_explained_variance_ratio"
        family = GaugeMetricFamily(name, METRICS[name], labels=["component"])
        for i, ratio in enumerate([] if served is None else served.model.explained_variance_ratio, start=1):
            family.add_metric([str(i)], float(ratio))
        return family

    def _failures(self) -> Metric:
        name = "streampca_model_load_failures_total"
        family = CounterMetricFamily(name, METRICS[name], labels=["cause"])
        for cause in ("damaged", "store", "bug"):
            family.add_metric([cause], self._serving.failures[cause])
        return family


def _gauge(name: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, METRICS[name])
    if value is not None:
        family.add_metric([], value)
    return family

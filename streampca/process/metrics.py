"""The registry that worker and sidecar use, and the metrics of requests to an object store."""

import platform
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import Metric
from prometheus_client.registry import RestrictedRegistry

from streampca.version import __version__


class LabelledRegistry(CollectorRegistry):
    """Adds constant labels to every sample: without the topic's, an alert's sum over one topic would hide another."""

    def __init__(self, role: str, **labels: str) -> None:
        """The `role` of the process is part of its build info, by which alerts find it, whatever its job's name."""
        super().__init__()
        self._constant = labels
        text = "Role of the process, and versions of streampca and of Python."
        build = Info("streampca_build", text, registry=self)
        build.info({"role": role, "version": __version__, "python": platform.python_version()})

    def collect(self) -> Iterator[Metric]:
        """All metrics, as their collectors make them for this call, with the labels added."""
        for family in super().collect():
            family.samples = [sample._replace(labels={**self._constant, **sample.labels}) for sample in family.samples]
            yield family

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """A registry of the samples with these names, as a scrape with `name[]` asks for."""
        return _NamedSamples(names, self)


class _NamedSamples(RestrictedRegistry):
    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.name in self._name_set]
            if family.samples:
                yield family


_DURATIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)


class StoreMetrics:
    """Counts and times the requests to an object store; no series without one."""

    def __init__(self) -> None:
        text = "Requests to the object store, by operation and outcome (ok, missing or error)."
        self._requests = Counter("streampca_store_requests_total", text, ["operation", "outcome"], registry=None)
        text, name = "Duration of the requests to the object store, by operation.", "store_request_duration_seconds"
        self._durations = Histogram(f"streampca_{name}", text, ["operation"], registry=None, buckets=_DURATIONS)

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self._requests)
        registry.register(self._durations)

    def observe(self, operation: str, outcome: str, seconds: float, requests: int) -> None:
        """Count what one operation took: a listing of thousands of names takes several requests."""
        self._requests.labels(operation, outcome).inc(requests)
        self._durations.labels(operation).observe(seconds)

"""The metrics registry of all roles, and the metrics of requests to the store."""

import platform
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import Metric
from prometheus_client.registry import RestrictedRegistry

from streampca.version import __version__


class LabelledRegistry(CollectorRegistry):
    """A registry that adds constant labels to every sample.

    Without the topic as a label, an alert would add up the figures of several topics, and one would hide the other.
    """

    def __init__(self, role: str, **labels: str) -> None:
        """`labels` are added to every sample. `role` becomes a label of only the metric streampca_build_info.

        Alerts find processes by the label `role`, because users choose the values of `job`.
        """
        super().__init__()
        self._constant_labels = labels
        description = "Role of the process, and versions of streampca and of Python."
        build_info = Info("streampca_build", description, registry=self)
        build_info.info({"role": role, "version": __version__, "python": platform.python_version()})

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, with the labels added."""
        for family in super().collect():
            samples = []
            for sample in family.samples:
                labels = {**self._constant_labels, **sample.labels}
                samples.append(sample._replace(labels=labels))
            family.samples = samples  # each call gets new families
            yield family

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """Return a registry of the samples with these names, for a scrape whose URL names them by `name[]`."""
        return _NamedSamples(names, self)


class _NamedSamples(RestrictedRegistry):
    """The samples with some names, with the labels added.

    prometheus_client's own class asks the collectors, which do not know these labels.
    """

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.name in self._name_set]
            if family.samples:
                yield family


_DURATION_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)


class StoreMetrics:
    """Counts and durations of requests to a bucket, or to the store of a plug-in. A folder has no such metrics."""

    def __init__(self) -> None:
        # registry=None: `register` adds the metrics later to the registry of the process.
        self._requests = Counter(
            "streampca_store_requests_total",
            "Requests to the bucket or the plug-in's store, by operation and outcome (ok, missing or error).",
            ["operation", "outcome"],
            registry=None,
        )
        self._durations = Histogram(
            "streampca_store_request_duration_seconds",
            "Duration of the requests to the bucket or the plug-in's store, by operation.",
            ["operation"],
            registry=None,
            buckets=_DURATION_BUCKETS_S,
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Let the registry export these metrics."""
        registry.register(self._requests)
        registry.register(self._durations)

    def observe(self, operation: str, outcome: str, seconds: float, requests: int) -> None:
        """Count the requests of an operation and its duration. A long listing takes several requests."""
        self._requests.labels(operation, outcome).inc(requests)
        self._durations.labels(operation).observe(seconds)

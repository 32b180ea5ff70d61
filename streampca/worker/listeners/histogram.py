"""A Prometheus histogram that takes arrays: prometheus_client's own takes a microsecond for each value."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BulkHistogram(Collector):
    """Exposed in the same form as `prometheus_client.Histogram`, without its time of creation."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        """`buckets` are the inclusive upper bounds, ascending; the bucket up to +Inf is added."""
        self._name, self._documentation, self._bounds = name, documentation, np.array(buckets)
        self._seen = np.zeros(len(buckets) + 1, np.int64), 0.0  # replaced together, for a scrape
        registry.register(self)

    def observe(self, values: NDArray[np.float64]) -> None:
        """Count all values."""
        counts, total = self._seen
        buckets = np.searchsorted(self._bounds, values)
        self._seen = counts + np.bincount(buckets, minlength=len(counts)), total + float(np.sum(values))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        counts, total = self._seen
        names = [floatToGoString(bound) for bound in [*self._bounds, np.inf]]  # type: ignore[no-untyped-call]
        cumulated = [float(count) for count in np.cumsum(counts)]
        buckets = list(zip(names, cumulated, strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)

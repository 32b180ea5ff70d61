"""A registry of Prometheus metrics whose samples all have the same constant labels, the topic's name above all.

Two topics may be scraped by one Prometheus: without the label an alert's sum over one would hide the other.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric


class LabelledRegistry(CollectorRegistry):
    """Adds constant labels to every sample when it is collected, those of the process included."""

    def __init__(self, **labels: str) -> None:
        super().__init__()
        self._constant = labels

    def collect(self) -> Iterator[Metric]:
        """All metrics, as their collectors make them for this call, with the labels added."""
        for family in super().collect():
            family.samples = [sample._replace(labels={**self._constant, **sample.labels}) for sample in family.samples]
            yield family

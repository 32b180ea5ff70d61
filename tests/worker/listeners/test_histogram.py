"""BulkHistogram exposes the same text as prometheus_client's Histogram."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from streampca.worker.listeners.histogram import BulkHistogram

BOUNDS = (0.001, 0.1, 0.5, 1.0)


@given(st.lists(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 2)), max_size=20), max_size=5))
def test_same_exposition_as_single_observations(batches: list[list[float]]) -> None:
    bulk, single = CollectorRegistry(), CollectorRegistry()
    bulk_histogram = BulkHistogram("ratio", "A share.", BOUNDS, bulk)
    single_histogram = Histogram("ratio", "A share.", buckets=BOUNDS, registry=single)
    for batch in batches:
        bulk_histogram.observe(np.array(batch))
        for value in batch:
            single_histogram.observe(value)
    text = generate_latest(bulk).decode()
    assert _comparable(text) == _comparable(generate_latest(single).decode())
    (total,) = [line for line in text.splitlines() if line.startswith("ratio_sum")]
    assert float(total.split()[1]) == pytest.approx(sum(sum(batch) for batch in batches))


def _comparable(text: str) -> list[str]:
    """The lines without the creation time, and without the sum, which depends on the order of addition."""
    return [line for line in text.splitlines() if "_created" not in line and not line.startswith("ratio_sum")]

"""Values counted in bulk are exposed as prometheus_client exposes those that it counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from streampca.worker.listeners.histogram import BulkHistogram

BOUNDS = (0.001, 0.1, 0.5, 1.0)


@given(st.lists(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 2)), max_size=20), max_size=5))
def test_the_exposition_is_that_of_one_by_one(batches: list[list[float]]) -> None:
    bulk, single = CollectorRegistry(), CollectorRegistry()
    ours = BulkHistogram("ratio", "A share.", BOUNDS, bulk)
    theirs = Histogram("ratio", "A share.", buckets=BOUNDS, registry=single)
    for batch in batches:
        ours.observe(np.array(batch))
        for value in batch:
            theirs.observe(value)
    text = generate_latest(bulk).decode()
    assert _without(text) == _without(generate_latest(single).decode())
    (total,) = [line for line in text.splitlines() if line.startswith("ratio_sum")]
    assert float(total.split()[1]) == pytest.approx(sum(sum(batch) for batch in batches))


def _without(text: str) -> list[str]:
    """Without the time of creation, and the sum, which depends on the order of adding."""
    return [line for line in text.splitlines() if "_created" not in line and not line.startswith("ratio_sum")]

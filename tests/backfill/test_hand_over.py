"""Where history ends, the topic begins: lake and topic overlap, and every row counts once."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.backfill.rows import START_MS, make_table
from tests.command_line import succeeded, variables
from tests.example_models import models_in
from tests.guarantees.harness import D, Group, K, as_json, group, vectors
from tests.kafka_broker import Broker


def filled(broker: Broker, topic: str, folder: Path) -> np.ndarray:
    """A topic with the rows 400 to 2,000 and a lake with the rows 0 to 1,200, a second apart."""
    Y = vectors(2000, seed=0)
    broker.create_topic(topic, 2)
    for i in range(400, 2000):
        if i % 100 == 0:  # a request for each hundred rows, all with the time of the first
            broker.produce(topic, i // 100 % 2, as_json(Y[i : i + 100]), START_MS + 1000 * i)
    times = START_MS + 1000 * (np.arange(1200) // 100 * 100)
    more = {"partition": pa.array(np.arange(1200) // 100 % 2), "offset": offsets()}
    lake = make_table(Y[:1200], **more).set_column(1, "time", pa.array(times, pa.timestamp("ms")))
    pq.write_table(lake, folder / "lake.parquet", row_group_size=500)
    return Y


def offsets() -> pa.Array:
    """The topic's offsets of the lake's rows; those before it are negative."""
    hundreds = np.arange(1200) // 100
    return pa.array((hundreds - 4) // 2 * 100 + np.arange(1200) % 100)


def backfill(broker: Broker, members: Group, folder: Path, *until: str) -> str:
    settings = {"topic": members.topic, "dimensions": D, "components": K, "store": members.store}
    # Not forked from a process of the tests: those may have no children.
    command = [sys.executable, "-m", "streampca", "backfill", folder / "lake.parquet", "--field", "embedding",
               "--timestamp-column", "time", *until]  # fmt: skip
    return succeeded(*command, env=os.environ | variables(settings))


@pytest.mark.parametrize(
    ("client", "until"),
    [("kafka-python", "2023-11-14T22:30:00Z"), ("confluent", "0:200,1:200")],  # 1,000 seconds after the start
    ids=["a time", "offsets"],
)
def test_every_row_counts_once(broker: Broker, topic: str, tmp_path: Path, client: str, until: str) -> None:
    Y = filled(broker, topic, tmp_path)
    begun = {0: 200, 1: 200} if ":" in until[:2] else {0: 300, 1: 300}
    with group(broker, topic, tmp_path, [client], start="backfill") as members:
        output = backfill(broker, members, tmp_path, "--until", until)
        members.start()
        models = models_in(members.store, topic)
        members.wait(lambda: (newest := models.newest()) and newest.version == 2000, "a model of all rows")
        published: Any = models.newest()
        events = [e for e in members.workers[0].events() if e["event"] == "partition begun"]
    assert f"{400 + sum(begun.values()):,} vectors learned" in output
    assert {e["partition"]: e["offset"] for e in events} == begun
    np.testing.assert_allclose(published.model.mean, Y.mean(axis=0), rtol=1e-9)
    exact = np.linalg.eigvalsh(np.cov(Y.T, bias=True))[::-1]
    np.testing.assert_allclose(published.model.explained_variance, exact[:K], rtol=1e-6)
    assert (published.positions[2**31], published.model.weight) == (1200, 2000.0)

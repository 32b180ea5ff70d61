"""Outliers are skipped or become dead letters, apart from bad records; metrics and log show what the guard does."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from streampca.consumer_group.listener import BatchLearned, Listeners
from streampca.errors import BadRecordError
from streampca.stream import guard
from streampca.stream.checkpoint import encode
from streampca.stream.record import last_of
from streampca.stream.screening import Screening
from streampca.worker.listeners.log import WorkerLog
from streampca.worker.listeners.metrics import WorkerMetrics
from tests.stream.streams import vectors
from tests.worker.environment import POISON, TOPIC, Environment
from tests.worker.harness import make_worker, worker_config

OUTLIERS = [1600, 1601, 2100]  # offsets
SCREENING = Screening(outlier_p=0.002)


def options(**changed: Any) -> dict[str, Any]:
    return {"bad_records": "stop", "checkpoint_interval_s": 60, "screening": SCREENING, **changed}


def filled(outliers: Sequence[int] = OUTLIERS, scale: float = 50) -> Environment:
    """No vector but the outliers is far from the others."""
    env, V = Environment(), np.clip(vectors(2300), -1.5, 1.5)
    V[list(outliers)] *= np.linspace(scale, 2 * scale, len(outliers))[:, None]
    env.send(0, V)
    return env


@pytest.mark.parametrize(("policy", "sent"), [("skip", False), ("dead_letter", True)])
@pytest.mark.parametrize("batch", [7, 1000])
def test_an_outlier_is_not_learned(policy: str, batch: int, sent: bool) -> None:
    env, metrics = filled(), WorkerMetrics(TOPIC)
    worker = make_worker(env, worker_config(**options(outliers=policy)), batch=batch)
    worker.add_listener(metrics)
    worker.run()
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert dict(newest.fold.stats.rejected) == {"outlier": len(OUTLIERS)}
    assert env.dead_letters == ([(0, offset, "outlier") for offset in OUTLIERS] if sent else [])
    assert newest.fold.last == last_of(env.topic.logs[0].records)
    counted = metrics.registry.get_sample_value
    outcome = {"topic": TOPIC, "outcome": "dead_lettered" if sent else "skipped"}
    assert counted("streampca_outliers_total", outcome) == len(OUTLIERS)
    assert counted("streampca_outliers_total", {"topic": TOPIC, "outcome": "learned"}) == 0
    assert counted("streampca_guard_open", {"topic": TOPIC, "partition": "0"}) == 0


def test_the_checkpoint_does_not_depend_on_restarts() -> None:
    once, again = filled(), Environment()
    make_worker(once, worker_config(**options(outliers="dead_letter"))).run()
    records = once.topic.logs[0].records
    for start in range(0, len(records), 310):
        again.send(0, [record.value for record in records[start : start + 310]])
        make_worker(again, worker_config(**options(outliers="dead_letter")), batch=90).run()
    found, expected = again.checkpoints.newest(0), once.checkpoints.newest(0)
    assert found is not None
    assert expected is not None
    assert encode(replace(found, topic_id="")) == encode(replace(expected, topic_id=""))
    assert again.dead_letters == once.dead_letters


def test_by_default_outliers_are_learned() -> None:
    env = filled()
    make_worker(env, worker_config()).run()
    env.assert_complete()


def test_a_bad_record_stops_the_worker_and_an_outlier_does_not() -> None:
    env = filled()
    env.send(0, [POISON])
    with pytest.raises(BadRecordError, match="offset 2300"):
        make_worker(env, worker_config(**options(outliers="skip"))).run()
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert dict(newest.fold.stats.rejected) == {"outlier": len(OUTLIERS)}
    assert newest.fold.position == 2300


def test_a_guard_that_opens_is_logged_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST", 5)
    monkeypatch.setattr(guard, "RECENT", 300)
    env, metrics = filled(range(1600, 1610)), WorkerMetrics(TOPIC)
    with capture_logs() as logs:
        worker = make_worker(env, worker_config(**options(outliers="skip")), batch=20)
        worker.add_listener(Listeners(metrics, WorkerLog()))
        worker.run()
    events = [entry for entry in logs if entry["event"].startswith("guard ")]
    assert [(entry["event"], entry["log_level"]) for entry in events] == [
        ("guard opened", "warning"), ("guard closed", "info")
    ]  # fmt: skip
    counted = metrics.registry.get_sample_value
    assert counted("streampca_outliers_total", {"topic": TOPIC, "outcome": "skipped"}) == 5
    assert counted("streampca_outliers_total", {"topic": TOPIC, "outcome": "learned"}) == 5
    is_open = [e.fold.guard.is_open for e in worker.recorder.of_type(BatchLearned) if e.fold.guard]
    assert is_open.count(True) == 15

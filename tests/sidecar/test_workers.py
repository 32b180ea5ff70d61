"""The reports of the workers, read from the store."""

import time
from typing import Any

from streampca.stores.memory import MemoryStore
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses
from tests.example_models import TOPIC
from tests.sidecar.http_client import Client


def report(store: MemoryStore, name: str, age: float) -> ProcessStatus:
    partition = PartitionStatus(position=5, lag=0, learned=4, rejected=1, loss_ewma=None)
    report = ProcessStatus(
        name=name, state="waiting", trouble="disk full", started_at=1.0, updated_at=time.time() - age,
        messages_per_second=2.5, partitions={"0": partition},
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(report)
    return report


def workers(client: Client) -> list[dict[str, Any]]:
    answer = client.get("/v1/page/workers")
    assert answer.status_code == 200
    return list(answer.json()["workers"])


def test_reports_are_sorted_by_name_and_have_an_age(client: Client, store: MemoryStore) -> None:
    b, a = report(store, "b", age=100), report(store, "a", age=0)
    assert abs(client.get("/v1/page/workers").json()["now"] - time.time()) < 60
    reports = workers(client)
    assert 0 <= reports[0].pop("silent_s") < 60 <= reports[1].pop("silent_s") < 160
    assert reports == [a.model_dump(), b.model_dump()]


def test_without_workers_there_are_no_reports(client: Client) -> None:
    assert workers(client) == []


def test_old_damaged_and_foreign_reports_are_ignored(client: Client, store: MemoryStore) -> None:
    for name, age in (("old", 3700), ("recent", 3500), ("ahead", -50)):
        report(store, name, age)
    store.write(f"workers/{TOPIC}/broken.json", b"{")
    store.write("workers/other/x.json", b"{")
    reports = workers(client)
    assert [one["name"] for one in reports] == ["ahead", "recent"]
    assert reports[0]["silent_s"] == 0


def test_those_of_another_topic_on_request(client: Client, store: MemoryStore) -> None:
    ProcessStatuses(store, "orders").write(report(store, "a", age=0))
    store.delete(f"workers/{TOPIC}/a.json")
    assert [one["name"] for one in client.get("/v1/page/workers?topic=orders").json()["workers"]] == ["a"]
    assert workers(client) == []


def test_an_unreadable_store_is_503(client: Client, store: MemoryStore) -> None:
    report(store, "a", age=0)
    store.fail_reads(1)
    answer = client.get("/v1/page/workers")
    assert answer.status_code == 503
    assert "cannot read" in answer.json()["error"]

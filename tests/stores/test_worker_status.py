"""Workers' reports in a store: what cannot be understood is passed over, what the store cannot do is said."""

import pytest

from streampca.errors import StoreError
from streampca.stores.memory import MemoryStore
from streampca.stores.worker_status import PartitionStatus, WorkerStatus, WorkerStatuses

FOLDER = "workers/t"


def report(name: str, updated_at: float = 100.0) -> WorkerStatus:
    partition = PartitionStatus(position=5, lag=0, learned=4, rejected=1, loss_ewma=0.5)
    return WorkerStatus(
        name=name, state="learning", trouble=None, started_at=1.0, updated_at=updated_at, messages_per_second=2.5,
        partitions={"0": partition},
    )  # fmt: skip


def test_what_is_written_is_read_by_name() -> None:
    store = MemoryStore()
    reports = WorkerStatuses(store, "t")
    for name in ("b", "a", "a-1", "A.1"):
        reports.write(report(name))
    WorkerStatuses(store, "other").write(report("c"))
    assert reports.all() == [report("A.1"), report("a"), report("a-1"), report("b")]


def test_a_report_replaces_the_same_workers_last_one() -> None:
    reports = WorkerStatuses(MemoryStore(), "t")
    reports.write(report("a", 1.0))
    reports.write(report("a", 2.0))
    assert reports.all() == [report("a", 2.0)]


def test_no_reports_at_all() -> None:
    assert WorkerStatuses(MemoryStore(), "t").all() == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"name": "a"}',
     report("a").model_dump_json().replace("learning", "x").encode(),
     report("a").model_dump_json().replace("100.0", '"100"').encode(),
     report("a").model_dump_json().replace('"a"', '"../a"').encode()],
)  # fmt: skip
def test_what_is_no_report_is_passed_over(content: bytes) -> None:
    store = MemoryStore()
    store.write(f"{FOLDER}/a.json", content)
    WorkerStatuses(store, "t").write(report("b"))
    assert WorkerStatuses(store, "t").all() == [report("b")]


def test_fields_of_a_later_release_do_no_harm() -> None:
    store = MemoryStore()
    store.write(f"{FOLDER}/a.json", report("a").model_dump_json().replace("{", '{"novelty": 1,', 1).encode())
    assert WorkerStatuses(store, "t").all() == [report("a")]


def test_other_files_are_left_alone() -> None:
    store = MemoryStore()
    store.write(f"{FOLDER}/readme.txt", b"x")
    store.write(f"{FOLDER}/sub/a.json", b"x")
    reports = WorkerStatuses(store, "t")
    reports.remove(before=1e12)
    assert reports.all() == []
    assert store.names(FOLDER) == [f"{FOLDER}/readme.txt", f"{FOLDER}/sub"]


def test_a_report_removed_while_it_is_read_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    WorkerStatuses(store, "t").write(report("a"))
    monkeypatch.setattr(store, "names", lambda folder: [f"{FOLDER}/a.json", f"{FOLDER}/gone.json"])
    assert WorkerStatuses(store, "t").all() == [report("a")]


def test_a_store_that_fails_is_said() -> None:
    store = MemoryStore()
    WorkerStatuses(store, "t").write(report("a"))
    store.fail_reads(1)
    with pytest.raises(StoreError):
        WorkerStatuses(store, "t").all()

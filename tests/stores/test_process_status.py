"""Worker status files in a store: invalid files are skipped, errors of the store are raised."""

import pytest

from streampca.errors import StoreError
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses
from tests.in_memory.store import FaultyStore

FOLDER = "workers/t"


def status(name: str, updated_at: float = 100.0) -> ProcessStatus:
    partition = PartitionStatus(position=5, lag=0, learned=4, rejected=1, loss_ewma=0.5)
    return ProcessStatus(
        name=name, state="learning", trouble=None, started_at=1.0, updated_at=updated_at, messages_per_second=2.5,
        partitions={"0": partition},
    )  # fmt: skip


@pytest.fixture
def statuses(store: FaultyStore) -> ProcessStatuses:
    return ProcessStatuses(store, "t")


def test_the_last_status_of_each_worker_is_read_in_order_of_name(statuses: ProcessStatuses, store: FaultyStore) -> None:
    assert statuses.all() == []
    for name in ("b", "a", "a-1", "A.1"):
        statuses.write(status(name, updated_at=1.0))
        statuses.write(status(name))
    ProcessStatuses(store, "other").write(status("c"))
    assert statuses.all() == [status("A.1"), status("a"), status("a-1"), status("b")]


WRITTEN = status("a").model_dump_json()


@pytest.mark.parametrize(
    ("content", "is_valid"),
    [*((invalid, False) for invalid in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"name": "a"}')),
     (WRITTEN.replace("learning", "x").encode(), False), (WRITTEN.replace("100.0", '"100"').encode(), False),
     (WRITTEN.replace('"a"', '"../a"').encode(), False), (WRITTEN.replace("{", '{"novelty": 1,', 1).encode(), True)],
)  # fmt: skip
def test_invalid_status_files_are_skipped_and_unknown_fields_ignored(
    statuses: ProcessStatuses, store: FaultyStore, content: bytes, is_valid: bool
) -> None:
    store.write(f"{FOLDER}/a.json", content)
    statuses.write(status("b"))
    assert statuses.all() == [*[status("a")] * is_valid, status("b")]


def test_other_files_are_ignored(statuses: ProcessStatuses, store: FaultyStore) -> None:
    store.write(f"{FOLDER}/readme.txt", b"x")
    store.write(f"{FOLDER}/sub/a.json", b"x")
    statuses.remove(before=1e12)
    assert statuses.all() == []
    assert store.names(FOLDER) == [f"{FOLDER}/readme.txt", f"{FOLDER}/sub"]


def test_a_status_removed_while_listing_is_skipped_but_errors_of_the_store_are_raised(
    statuses: ProcessStatuses, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses.write(status("a"))
    monkeypatch.setattr(store, "names", lambda folder: [f"{FOLDER}/a.json", f"{FOLDER}/gone.json"])
    assert statuses.all() == [status("a")]
    store.fail_reads(1)
    with pytest.raises(StoreError):
        statuses.all()

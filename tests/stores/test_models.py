"""Published models in a store: versions, fallback from damaged files, pruning."""

import pytest
from structlog.typing import EventDict

from streampca.errors import DamagedFileError, NewerFormatError, StaleListingError, StoreBusyError, StoreError
from streampca.stores.models import Models
from tests.errors import refusal
from tests.example_models import TOPIC, file_of, newer, of_format, with_stats
from tests.fold.test_model_file import a_published
from tests.in_memory.store import FaultyStore
from tests.pca.streams import values_in


@pytest.fixture
def models(store: FaultyStore) -> Models:
    return Models(store, TOPIC, keep=3)


def save(models: Models, *versions: int) -> None:
    for version in versions:
        models.save(a_published(version))


def newest_version(models: Models) -> int | None:
    newest = models.newest()
    return None if newest is None else newest.version


def test_an_empty_store_has_no_newest_model(models: Models) -> None:
    assert models.versions() == []
    assert models.newest() is None
    refusal(FileNotFoundError, models.load, 1)


def test_a_model_that_cannot_be_read_is_skipped_unless_the_store_is_busy(
    models: Models, store: FaultyStore, logs: list[EventDict]
) -> None:
    """Such as an archived object, or one of another owner."""
    save(models, 5, 100)
    store.fail_reads(1, StoreError("cannot read: 403 InvalidObjectState"))
    assert newest_version(models) == 5
    assert [line["version"] for line in logs] == [100]
    store.fail_reads(1, StoreBusyError("cannot read: 503"))
    refusal(StoreBusyError, models.newest)


def test_the_newest_has_the_highest_version_and_an_older_one_never_replaces_it(models: Models) -> None:
    save(models, 5, 100, 20, 1)
    assert models.versions() == [5, 20, 100]
    assert newest_version(models) == 100


def test_an_existing_version_is_not_written_again(models: Models, store: FaultyStore) -> None:
    save(models, 1)
    store.fail_writes(1)
    assert models.save(a_published(1)) is False


def test_a_damaged_version_is_written_again(models: Models, store: FaultyStore) -> None:
    models.save(a_published(1))
    store.damage(file_of(1), 100)
    assert models.save(a_published(1))
    assert values_in(models.load(1)) == values_in(a_published(1))


def test_old_versions_are_deleted_although_one_cannot_be_deleted(logs: list[EventDict]) -> None:
    class Immutable(FaultyStore):
        def delete(self, name: str) -> None:
            if name == file_of(1):
                raise StoreError("no permission")
            super().delete(name)

    models = Models(Immutable(), TOPIC, keep=3)
    assert all(models.save(a_published(version)) for version in range(1, 9))
    assert models.versions() == [1, 6, 7, 8]
    assert [event["event"] for event in logs] == ["old models not deleted"]  # and not tried again


def test_damaged_models_are_skipped_and_logged(models: Models, store: FaultyStore, logs: list[EventDict]) -> None:
    save(models, 1, 2, 3)
    store.damage(file_of(3), 500)
    store.cut(file_of(2), 100)
    assert newest_version(models) == 1
    assert [(event["log_level"], event["version"]) for event in logs] == [("error", 3), ("error", 2)]
    refusal(DamagedFileError, models.load, 3)
    store.cut(file_of(1), 0)
    assert models.newest() is None


def write_in_format_1(store: FaultyStore, version: int) -> None:
    """Give the file of a version a format that this release is too new to read."""
    store.write(file_of(version), of_format(1, store.read(file_of(version)), "model"))


def test_models_of_a_release_that_is_too_old_are_not_found_by_their_partitions(
    models: Models, store: FaultyStore
) -> None:
    save(models, 1, 2, 3)
    [partition, *_] = a_published(1).positions
    assert models.find_containing(partition) == [3, 2, 1]
    write_in_format_1(store, 2)
    assert models.find_containing(partition) == [3, 1]
    for version in (1, 3):
        write_in_format_1(store, version)
    assert models.find_containing(partition) == []


def test_models_of_a_newer_release_may_contain_the_partition_so_they_end_the_search(
    models: Models, store: FaultyStore
) -> None:
    save(models, 1, 2)
    store.write(file_of(1), newer(store.read(file_of(1)), "model"))
    refusal(NewerFormatError, models.find_containing, 0)


def test_a_version_of_a_release_that_is_too_old_is_written_again(models: Models, store: FaultyStore) -> None:
    models.save(a_published(1))
    write_in_format_1(store, 1)
    assert models.save(a_published(1))
    assert values_in(models.load(1)) == values_in(a_published(1))


def test_a_model_under_a_wrong_name_counts_as_damaged(models: Models, store: FaultyStore) -> None:
    models.save(a_published(1))
    store.write(file_of(9), store.read(file_of(1)))
    assert "version 9 holds version 1" in refusal(DamagedFileError, models.load, 9)
    assert newest_version(models) == 1


def test_a_model_pruned_after_listing_is_skipped_and_it_is_an_error_if_all_are_gone(
    models: Models, store: FaultyStore
) -> None:
    save(models, 1, 2)
    listed = models.versions()
    store.delete(file_of(2))
    models.versions = lambda: listed  # type: ignore[method-assign]
    assert newest_version(models) == 1
    store.delete(file_of(1))
    assert f"models/{TOPIC}" in refusal(StaleListingError, models.newest)


def test_of_two_writers_of_a_version_one_gets_true(models: Models, store: FaultyStore) -> None:
    other = Models(store, TOPIC, keep=3)
    other.versions = list  # type: ignore[method-assign]  # its listing is older
    assert models.save(a_published(1))
    assert other.save(with_stats(a_published(1), rejected=7)) is False
    assert values_in(models.load(1)) == values_in(a_published(1))

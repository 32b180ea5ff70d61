"""The model in use is the newest undamaged one in the store, and polling finds it."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.typing import EventDict

from streampca.errors import EarlierFormatError, StoreBusyError, StoreError
from streampca.stores.model_cache import ModelCache, NoModelError, NotLoadedError, UnknownVersionError
from streampca.stores.models import Models
from tests.errors import logged, logged_events, refusal
from tests.example_models import TOPIC, empty_models, file_of, newer, numbered, of_format, save
from tests.in_memory.store import FaultyStore
from tests.waiting import Clock, wait_until


@pytest.fixture
def models(store: FaultyStore) -> Models:
    return empty_models(store)


@pytest.fixture
def cache(models: Models, clock: Clock) -> ModelCache:
    return ModelCache(models, clock)


def publish(cache: ModelCache, models: Models, *versions: int) -> None:
    """Save the models of these versions and let the cache find them."""
    save(models, *versions)
    cache.poll()


def version_in_use(cache: ModelCache) -> int | None:
    return cache.current.version if cache.current else None


def test_it_explains_that_no_model_was_published_or_all_are_damaged(
    cache: ModelCache, models: Models, store: FaultyStore
) -> None:
    cache.poll()
    assert cache.current is None
    reason = f"no model has been published yet in memory/models/{TOPIC}"
    assert cache.explain_no_model() == reason
    assert "no model has been published yet" in refusal(NoModelError, cache.get, None)
    models.save(numbered(7))
    store.damage(file_of(7), 500)
    cache.poll()
    start = f"no model in memory/models/{TOPIC} can be read; of the newest, version 7: the digest"
    assert cache.explain_no_model().startswith(start)


def test_the_newest_model_is_used_until_a_newer_model_is_published(cache: ModelCache, models: Models) -> None:
    for versions, newest in [((5, 9), 9), ((7,), 9), ((30, 20), 30)]:
        publish(cache, models, *versions)
        assert version_in_use(cache) == newest
    assert cache.store_error is None


def test_a_model_of_a_newer_release_is_skipped_and_logged_once(
    cache: ModelCache, models: Models, store: FaultyStore, clock: Clock, logs: list[EventDict]
) -> None:
    save(models, 1, 2)
    store.write(file_of(2), newer(store.read(file_of(2)), "model"))
    for _ in range(5):
        cache.poll()
        clock.now += 1
    assert (version_in_use(cache), cache.failures["damaged"], cache.store_error) == (1, 0, None)
    assert logged(logs) == ["models cannot be read"]
    [line] = logged_events(logs)
    assert (line["versions"], line["in_use"]) == ([2], 1)


def test_models_of_an_earlier_release_are_logged_in_one_line_and_newer_ones_are_served_beside_them(
    cache: ModelCache, models: Models, store: FaultyStore, clock: Clock, logs: list[EventDict]
) -> None:
    save(models, 1, 2)
    for version in (1, 2):
        store.write(file_of(version), of_format(1, store.read(file_of(version)), "model"))
    for _ in range(100):
        cache.poll()
        clock.now += 1
    assert (version_in_use(cache), cache.failures, cache.store_error) == (None, {}, None)
    assert "version 2: an earlier release has written this model file" in refusal(NoModelError, cache.get, None)
    publish(cache, models, 3)
    assert version_in_use(cache) == 3
    refusal(EarlierFormatError, cache.get, 2)
    assert logged(logs) == ["models cannot be read"]
    assert logged_events(logs)[0]["versions"] == [1, 2]


def test_the_model_before_one_that_cannot_be_read_is_served_until_it_can_be(
    cache: ModelCache, models: Models, store: FaultyStore, clock: Clock, logs: list[EventDict]
) -> None:
    save(models, 1, 2, 3)
    store.fail_reads(2, StoreError("cannot read x: Permission denied"))
    for seconds, version, unreadable in ((0, 1, {2, 3}), (59, 1, {2, 3}), (1, 3, {2})):
        clock.now += seconds
        cache.poll()
        assert (version_in_use(cache), cache.loader.unreadable.keys()) == (version, unreadable)
    assert (cache.failures, cache.store_error) == ({"unreadable": 2}, None)
    [line] = logged_events(logs)
    assert (line["event"], line["versions"]) == ("models cannot be read", [2, 3])


def test_a_store_of_which_no_file_can_be_read_has_no_model(
    cache: ModelCache, models: Models, store: FaultyStore
) -> None:
    save(models, 1, 2)
    store.fail_reads(2, StoreError("cannot read x: Permission denied"))
    cache.poll()
    assert cache.explain_no_model().endswith("of the newest, version 2: cannot read x: Permission denied")


def test_a_damaged_newest_model_is_skipped_logged_once_and_retried_after_a_minute(
    cache: ModelCache, models: Models, store: FaultyStore, clock: Clock, logs: list[EventDict]
) -> None:
    save(models, 1, 2, 3)
    whole = store.read(file_of(3))
    store.damage(file_of(3), 500)
    for seconds, version, failures in ((0, 2, 1), (4, 2, 1), (57, 2, 2), (1, 2, 2), (60, 3, 2)):
        clock.now += seconds
        cache.poll()
        assert (version_in_use(cache), cache.failures["damaged"]) == (version, failures)
        if failures == 2:
            store.write(file_of(3), whole)
    assert logged(logs) == ["models cannot be read"]


def test_a_model_pruned_between_listing_and_reading_is_skipped(cache: ModelCache, models: Models) -> None:
    models.save(numbered(1))
    versions = models.versions
    models.versions = lambda: [*versions(), 2]  # type: ignore[method-assign]
    cache.poll()
    assert version_in_use(cache) == 1


def test_an_unreadable_store_is_logged_once_and_so_is_its_recovery(
    cache: ModelCache, models: Models, store: FaultyStore, logs: list[EventDict]
) -> None:
    publish(cache, models, 1)
    models.save(numbered(2))
    store.fail_reads(3, StoreBusyError("cannot read x: a retry may help"))
    for _ in range(3):
        cache.poll()
        assert version_in_use(cache) == 1
        assert cache.store_error == "cannot read x: a retry may help"
    cache.poll()
    assert version_in_use(cache) == 2
    assert cache.store_error is None
    assert cache.failures["store"] == 3
    assert logged(logs) == ["store unreadable", "store readable again"]


def test_old_versions_are_cached_and_the_least_recently_used_is_evicted(cache: ModelCache, models: Models) -> None:
    publish(cache, models, *range(1, 8))
    assert cache.get(7) is cache.current
    refusal(NotLoadedError, cache.get_loaded, 1)
    first = cache.get(1)
    assert cache.get_loaded(1) is first
    for version in (2, 3, 4):
        cache.get(version)
    assert cache.get(1) is first  # used again just now, so that 2 is the one to go
    cache.get(5)
    assert cache.get_loaded(1) is first
    refusal(NotLoadedError, cache.get_loaded, 2)


def test_a_pruned_version_is_unknown_even_if_it_was_loaded(
    cache: ModelCache, models: Models, store: FaultyStore
) -> None:
    publish(cache, models, 1, 2)
    assert cache.get(1) is cache.get_loaded(1)
    store.delete(file_of(1))
    cache.poll()
    refusal(UnknownVersionError, cache.get, 1)


def test_a_version_newer_than_the_one_in_use_can_be_requested(cache: ModelCache, models: Models) -> None:
    publish(cache, models, 1)
    models.save(numbered(2))
    assert cache.get(2).version == 2
    assert version_in_use(cache) == 1


def test_an_emptied_store_leaves_the_model_in_use_and_a_replaced_one_supersedes_it(
    cache: ModelCache, models: Models, store: FaultyStore, logs: list[EventDict]
) -> None:
    publish(cache, models, 100)
    store.delete(file_of(100))
    cache.poll()
    assert version_in_use(cache) == 100
    publish(cache, models, 3)
    assert version_in_use(cache) == 3
    assert logged(logs) == ["store has older models only"]


def test_a_listing_that_goes_back_changes_nothing(cache: ModelCache, models: Models, store: FaultyStore) -> None:
    publish(cache, models, 1, 2)
    models.versions = lambda: [1]  # type: ignore[method-assign]
    cache.poll()
    assert version_in_use(cache) == 2
    store.delete(file_of(2))
    cache.poll()
    assert version_in_use(cache) == 1


def test_the_poller_loads_newer_models_until_it_is_stopped(cache: ModelCache, models: Models) -> None:
    models.save(numbered(1))
    cache.start(0.01)
    assert version_in_use(cache) == 1
    models.save(numbered(2))
    wait_until(lambda: version_in_use(cache) == 2)
    cache.stop()
    cache._poller.join(60)
    assert not cache._poller.is_alive()


def test_a_bug_does_not_stop_the_polling(cache: ModelCache, models: Models, logs: list[EventDict]) -> None:
    cache.start(0.01)
    load = models.load
    faults = [RuntimeError("a bug")]

    def faulty(version: int) -> Any:
        if faults:
            raise faults.pop()
        return load(version)

    models.load = faulty  # type: ignore[method-assign]
    models.save(numbered(1))
    wait_until(lambda: version_in_use(cache) == 1)
    cache.stop()
    assert cache.failures["bug"] == 1
    assert "polling for models failed" in logged(logs)


class _Guarded(OrderedDict[int, Any]):
    """The older models, which may be used only under the lock: requests and polls come from many threads."""

    def __init__(self, cache: ModelCache) -> None:
        self._cache = cache
        self.uses = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "uses":
            self._note()
        return super().__getattribute__(name)

    def _note(self) -> None:
        assert self._cache._lock.locked()
        self.uses += 1

    def __contains__(self, key: object) -> bool:
        self._note()
        return super().__contains__(key)

    def __getitem__(self, key: int) -> Any:
        self._note()
        return super().__getitem__(key)

    def __setitem__(self, key: int, value: Any) -> None:
        self._note()
        super().__setitem__(key, value)

    def __delitem__(self, key: int) -> None:
        self._note()
        super().__delitem__(key)

    def __iter__(self) -> Iterator[int]:
        self._note()
        return super().__iter__()


def test_older_models_are_used_only_under_the_lock(cache: ModelCache, models: Models, store: FaultyStore) -> None:
    publish(cache, models, *range(1, 9))
    guarded = cache._other_versions = _Guarded(cache)
    for version in (1, 2, 3, 4, 5, 6, 1, 7):  # more than are kept
        cache.get(version)
    refusal(NotLoadedError, cache.get_loaded, 2)
    assert cache.get_loaded(7).version == 7
    store.delete(file_of(7))
    used = guarded.uses
    cache.poll()
    assert guarded.uses > used
    refusal(NotLoadedError, cache.get_loaded, 7)

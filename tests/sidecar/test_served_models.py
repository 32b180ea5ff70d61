"""The models that a sidecar serves: pins and their drift, and the reasons not to be ready."""

import pytest
from structlog.typing import EventDict

from streampca.errors import StoreBusyError, StoreError
from streampca.sidecar.served_models import ServedModels
from streampca.stores.models import Models
from streampca.stores.pins import Pins, UnknownPinError
from tests.errors import logged, logged_events, refusal
from tests.example_models import TOPIC, empty_models, file_of, newer, numbered, save
from tests.in_memory.store import FaultyStore
from tests.waiting import Clock


@pytest.fixture
def models(store: FaultyStore) -> Models:
    return empty_models(store)


@pytest.fixture
def served(models: Models, clock: Clock) -> ServedModels:
    return ServedModels(models, clock)


def publish(served: ServedModels, models: Models, *versions: int) -> None:
    """Save the models of these versions and let the cache find them."""
    save(models, *versions)
    served.cache.poll()


def test_it_is_not_ready_without_a_model_or_while_the_store_cannot_be_read(
    served: ServedModels, models: Models, store: FaultyStore
) -> None:
    served.cache.poll()
    assert served.compute_age_s() is None
    reason = f"no model has been published yet in memory/models/{TOPIC}"
    assert served.explain_not_ready() == {"no model": reason}
    publish(served, models, 1)
    assert served.explain_not_ready() == {}
    models.save(numbered(2))
    store.fail_reads(1, StoreBusyError("cannot read x: a retry may help"))
    served.cache.poll()
    assert served.explain_not_ready() == {"store": "the store cannot be read: cannot read x: a retry may help"}
    served.cache.poll()
    assert served.explain_not_ready() == {}


def test_age_counts_by_our_clock_from_when_a_version_was_found(
    served: ServedModels, models: Models, clock: Clock
) -> None:
    for version, published_at in ((1, clock.now - 1e6), (2, clock.now + 1e6)):  # by wrong clocks
        models.save(numbered(version, published_at=published_at))
        served.cache.poll()
        for age in (0, 7, 30):
            assert served.compute_age_s() == age
            clock.now += {0: 7, 7: 23, 30: 1}[age]
            served.cache.poll()
    assert served.explain_not_ready() == {}  # no limit


def test_pins_are_read_when_their_names_or_the_newest_model_change_and_every_ten_seconds(
    served: ServedModels, models: Models, store: FaultyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(served, models, *range(1, 9))
    pins, reads, read, failing = Pins(store, TOPIC), list[str](), store.read, [file_of(8)]

    def reading(name: str) -> bytes:
        reads.append(name)
        if name in failing:
            failing.remove(name)
            store.fail_reads(1, StoreBusyError("cannot read: a retry may help"))
        return read(name)

    monkeypatch.setattr(store, "read", reading)
    assert "no model is pinned as 'a'; none is: `streampca pin VERSION` pins one" in refusal(
        UnknownPinError, served.get_loaded, "a"
    )
    for change, polls, times, meaning in (
        (lambda: pins.set("a", 1), 2, 1, 1),
        (lambda: pins.set("a", 2), 7, 0, 1),
        (lambda: None, 2, 1, 2),
        (lambda: models.save(numbered(9)), 2, 1, 2),
        (lambda: pins.set("b", 9), 2, 2, 2),
        (lambda: pins.set("a", 8), 12, 4, 8),  # reading it fails once
    ):
        change()
        reads.clear()
        for _ in range(polls):
            clock.now += 1
            served.cache.poll()
        assert sum(name.endswith(".pin") for name in reads) == times
        for version in (3, 4, 5, 6, 7):
            served.cache.get(version)
        assert served.get_loaded("a").version == served.drifts["a"]["version"] == meaning
    pins.remove("a")
    served.cache.poll()
    assert "no model is pinned as 'a'; the names there are: b" in refusal(UnknownPinError, served.get_loaded, "a")
    assert (served.get_loaded("b"), served.drifts.keys()) == (served.cache.current, {"b"})


def test_a_pinned_model_that_cannot_be_read_or_compared_has_no_drift(
    served: ServedModels, models: Models, store: FaultyStore, logs: list[EventDict]
) -> None:
    save(models, 1, 2, 3, 5)
    models.save(numbered(4, d=7))
    for version in range(1, 6):
        Pins(store, TOPIC).set(f"v{version}", version)
    store.delete(file_of(5))
    store.damage(file_of(1), 500)
    store.write(file_of(2), newer(store.read(file_of(2)), "model"))
    publish(served, models, 6, 8)
    publish(served, models, 9)
    assert (served.get_loaded(None).version, served.explain_not_ready(), served.drifts.keys()) == (9, {}, {"v3"})
    assert served.get_loaded("v4").model.dimensions == 7
    assert logged(logs) == ["pinned models are gone", "models cannot be read"]
    gone, unreadable = logged_events(logs)
    assert (gone["pins"], unreadable["versions"]) == ({"v5": 5}, [1, 2])
    first, second, third = served.list_unreadable()
    assert first.startswith("version 1 cannot be read: the digest")
    assert second.startswith("version 2 cannot be read: a newer release")
    assert third == "v5 pins version 5, which is gone"


def test_a_pinned_model_is_compared_once_it_can_be_read_or_is_back(
    served: ServedModels, models: Models, store: FaultyStore, clock: Clock, logs: list[EventDict]
) -> None:
    save(models, 1, 2)
    gone = store.read(file_of(1))
    Pins(store, TOPIC).set("first", 1)
    store.delete(file_of(1))
    store.fail_reads(1, StoreError("cannot read x: Permission denied"))  # the newest, so there is no model to compare
    for seconds, unreadable in ((0, 1), (60, 1), (60, 1)):
        clock.now += seconds
        served.cache.poll()
        assert len(served.list_unreadable()) == unreadable
        assert served.drifts == {}
    assert served.explain_not_ready() == {}
    store.write(file_of(1), gone)
    clock.now += 60
    served.cache.poll()
    assert (served.drifts.keys(), served.list_unreadable()) == ({"first"}, [])
    assert logged(logs) == ["models cannot be read", "pinned models are gone"]

"""Models that stay: history is thinned, not cut, and what is pinned is kept."""

import itertools
import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from streampca.errors import SettingsError
from streampca.stores.checksummed import encode
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models, choose_version_to_delete
from streampca.stores.pins import Pins, UnknownPinError
from streampca.stores.process_status import ProcessStatus, ProcessStatuses, TransformStatus
from tests.errors import refusal
from tests.example_models import numbered
from tests.in_memory.store import FaultyStore

WEEK_S = 7 * 86400.0
MONTH_S = 30 * 86400.0
FIRST = f"models/readings/{1:020d}.npz"


def choose_kept(versions: Iterable[int], keep: int) -> list[int]:
    """Return the versions that are left after these versions were published in this order."""
    history: set[int] = set()
    for version in versions:
        history.add(version)
        while (gone := choose_version_to_delete(history, keep)) is not None:
            history.remove(gone)
    return sorted(history)


@pytest.mark.parametrize(("seconds", "most"), [(WEEK_S, 1.18), pytest.param(MONTH_S, 1.25, marks=pytest.mark.slow)])
def test_a_hundred_versions_reach_back_to_the_first_and_younger_ones_are_closer_together(
    seconds: float, most: float
) -> None:
    last = int(seconds / 5)
    history = choose_kept(range(last + 1), 100)
    assert (len(history), history[0]) == (100, 0)
    ages = [last - version for version in reversed(history)]
    assert ages[:20] == list(range(20))
    assert all(later <= most * age for age, later in pairwise(ages[19:]))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.integers(1, 40))
def test_as_many_versions_as_keep_says_are_left_with_the_newest_and_the_oldest(messages: list[int], keep: int) -> None:
    """However many messages lie between two versions."""
    versions = list(itertools.accumulate(messages))
    history = choose_kept(versions, keep)
    assert len(history) == min(keep, len(versions))
    assert set(versions[-min(20, keep) :]) <= set(history)
    assert keep <= 20 or versions[0] in history


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(1, 30), st.integers(2, 1000))
def test_which_versions_are_kept_depends_on_ratios_of_ages_alone(messages: list[int], keep: int, factor: int) -> None:
    """Twice the throughput thins the same publications."""
    versions = list(itertools.accumulate(messages))
    several = choose_kept([factor * version for version in versions], keep)
    assert several == [factor * version for version in choose_kept(versions, keep)]


def create_publisher(store: MemoryStore, keep: int = 30) -> Callable[[int], Models]:
    """Return a function that publishes a number of further versions."""
    versions = iter(range(1, 10**6))
    models = Models(store, "readings", keep)

    def publish(count: int) -> Models:
        for _ in range(count):
            version = next(versions)
            assert models.save(numbered(version))
        return models

    return publish


def test_a_version_stays_while_it_is_pinned_or_reported_by_a_member() -> None:
    store = MemoryStore()
    publish = create_publisher(store)
    pins = Pins(store, "readings")
    reports = ProcessStatuses(store, "readings")
    publish(25)
    pins.set("index", 7)
    in_use = ProcessStatus(
        name="a", state="transforming", trouble=None, started_at=0, updated_at=0, messages_per_second=0, partitions={},
        transform=TransformStatus(output_topic="out", model_version=11),
    )  # fmt: skip
    reports.write(in_use)
    models = publish(200)
    assert {1, 7, 11, *range(206, 226)} <= set(models.versions())
    assert len(models.versions()) == 32
    pins.set("index", 225)
    reports.remove(before=math.inf)
    versions = publish(100).versions()
    assert 225 in versions
    assert not {7, 11} & set(versions)
    pins.remove("index")
    assert 225 not in publish(300).versions()


def test_a_version_is_deleted_without_reading_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a store that was copied, all of whose files are new."""
    store = FaultyStore()
    reads = list[str]()
    publish = create_publisher(store)
    publish(29)
    monkeypatch.setattr(store, "read", lambda name, read=store.read: (reads.append(name), read(name))[1])
    another = Models(store, "readings", keep=25)
    assert another.save(numbered(30))
    assert another.versions()[0] == 1
    assert len(another.versions()) == 25
    assert reads == []


def test_pins_are_listed_moved_and_removed_and_a_damaged_one_is_left_out() -> None:
    store = FaultyStore()
    publish = create_publisher(store)
    pins = Pins(store, "readings")
    publish(3)
    for name, version in (("b", 3), ("a.npz", 1), ("b", 2)):
        pins.set(name, version)
    assert pins.all() == {"a.npz": 1, "b": 2}
    assert publish(1).versions() == [1, 2, 3, 4]
    store.damage("models/readings/b.pin", 12)
    assert pins.all() == {"a.npz": 1}
    store.write("models/readings/b.pin", encode("version", "2"))
    assert pins.all() == {"a.npz": 1}
    pins.remove("b")
    assert "the names there are: a.npz" in refusal(UnknownPinError, lambda: pins.remove("b"))


def test_a_pin_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    pins = Pins(store, "readings")
    assert "has no model version 1 of readings: it has none" in refusal(SettingsError, lambda: pins.set("a", 1))
    create_publisher(store)(2)
    mistyped = refusal(SettingsError, lambda: Pins(store, "readngs").set("a", 2))
    assert mistyped.endswith("it has none; the store has models of readings")
    for name in ("", "1a", "a/b", "a b", "a" * 64, "latest"):
        assert "is not a name for a pin" in refusal(SettingsError, lambda name=name: pins.set(name, 1))
    assert "`streampca inspect` lists 1 to 2" in refusal(SettingsError, lambda: pins.set("a", 3))
    for i in range(10):
        pins.set(f"a{i}", 1)
    assert "has 10 pins" in refusal(SettingsError, lambda: pins.set("b", 1))
    pins.set("a0", 2)
    before = pins.all()
    write = store.write
    for name in ("a0", "a1"):  # the version is deleted while it is pinned
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", lambda *of: (write(*of), store.delete(FIRST)))
            refusal(SettingsError, lambda name=name: pins.set(name, 1))
        assert pins.all() == before
        store.write(FIRST, b"")

"""Models that stay: history is thinned, not cut, and what is pinned is kept."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from streampca.errors import SettingsError
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models, next_to_go, rising
from streampca.stores.pins import Pins, UnknownPinError
from streampca.stores.process_status import ProcessStatus, ProcessStatuses, TransformStatus
from streampca.stores.sealed import seal
from tests.errors import refusal
from tests.example_models import numbered
from tests.in_memory.store import FaultyStore

DAY = 86400.0
FIRST = f"models/readings/{1:020d}.npz"


def kept(times: list[float], keep: int) -> dict[int, float]:
    """The versions, and their times, that are kept of those published at these times."""
    history: dict[int, float] = {}
    for version, now in enumerate(times):
        history[version] = now
        if now < times[version - 1]:
            history = rising(history)
        while (gone := next_to_go(history, keep)) is not None:
            del history[gone]
    return history


@pytest.mark.parametrize(
    ("days", "most", "set_back_s"),
    [(7.0, 1.18, 0.0), (1.0, 1.18, 3e7), pytest.param(30.0, 1.25, 0.0, marks=pytest.mark.slow)],
)
def test_a_hundred_versions_reach_back_to_the_first_and_lie_the_denser_the_younger_they_are(
    days: float, most: float, set_back_s: float
) -> None:
    """Also when a clock that was fast is set back in the last half hour."""
    last = int(days * DAY / 5)
    history = kept([5.0 * i - (set_back_s if i > last - 360 else 0) for i in range(last + 1)], 100)
    assert (len(history), min(history)) == (100, 0)
    ages = [last - version for version in reversed(history)]
    assert ages[:20] == list(range(20))
    assert all(later <= most * age for age, later in pairwise(ages[19:]))


@given(st.lists(st.floats(-1e9, 1e10), min_size=1, max_size=60), st.integers(1, 40))
def test_whatever_the_clock_says_as_many_are_kept_and_the_newest_and_the_oldest_are_among_them(
    times: list[float], keep: int
) -> None:
    history, last = kept(times, keep), len(times) - 1
    assert len(history) == min(keep, len(times))
    assert set(range(max(0, last + 1 - min(20, keep)), last + 1)) <= set(history)
    assert keep <= 20 or 0 in history


def clocked(store: MemoryStore, keep: int = 30) -> Callable[[int], Models]:
    """Publishes a number of further versions, one each minute."""
    versions = iter(range(1, 10**6))
    models = Models(store, "readings", keep)

    def publish(count: int) -> Models:
        for _ in range(count):
            version = next(versions)
            assert models.save(numbered(version, published_at=60.0 * version))
        return models

    return publish


def test_pinned_versions_and_those_that_members_report_stay_and_go_once_they_are_not() -> None:
    store = MemoryStore()
    publish, pins, reports = clocked(store), Pins(store, "readings"), ProcessStatuses(store, "readings")
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


def test_times_are_listed_once_and_read_from_the_models_only_if_files_were_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, reads = FaultyStore(), list[str]()
    publish = clocked(store)
    publish(29)
    listed = {name: 60.0 * int(name[-24:-4]) for name in store.names("models/readings")}
    monkeypatch.setattr(store, "times", lambda folder: listed)
    monkeypatch.setattr(store, "read", lambda name, read=store.read: (reads.append(name), read(name))[1])
    another = Models(store, "readings", keep=25)
    assert another.save(numbered(30, published_at=1800.0))
    assert reads == []
    for version, order in ((31, 0.0), (33, -9.0)):  # all at once, and the newest first
        listed = {name: 1e9 + order * i for i, name in enumerate(store.names("models/readings"))}
        copied = Models(store, "readings", keep=25)
        for further in (version, version + 1):
            assert copied.snapshot().save(numbered(further, published_at=60.0 * further))
        assert len(reads) == len(set(reads)) == 25
        assert copied.versions()[0] == 1
        reads.clear()


def test_pins_are_listed_moved_and_removed_and_a_damaged_one_is_left_out() -> None:
    store = FaultyStore()
    publish, pins = clocked(store), Pins(store, "readings")
    publish(3)
    for name, version in (("b", 3), ("a.npz", 1), ("b", 2)):
        pins.set(name, version)
    assert pins.all() == {"a.npz": 1, "b": 2}
    assert publish(1).versions() == [1, 2, 3, 4]
    store.damage("models/readings/b.pin", 12)
    assert pins.all() == {"a.npz": 1}
    store.write("models/readings/b.pin", seal("version", "2"))
    assert pins.all() == {"a.npz": 1}
    pins.remove("b")
    assert "the names there are: a.npz" in refusal(UnknownPinError, lambda: pins.remove("b"))


def test_what_cannot_be_pinned_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    pins = Pins(store, "readings")
    assert "has no model version 1 of readings: it has none" in refusal(SettingsError, lambda: pins.set("a", 1))
    clocked(store)(2)
    mistyped = refusal(SettingsError, lambda: Pins(store, "readngs").set("a", 2))
    assert mistyped.endswith("it has none; the store has models of readings")
    for name in ("", "1a", "a/b", "a b", "a" * 64, "latest"):
        assert "is no name for a pin" in refusal(SettingsError, lambda name=name: pins.set(name, 1))
    assert "`streampca inspect` lists 1 to 2" in refusal(SettingsError, lambda: pins.set("a", 3))
    for i in range(10):
        pins.set(f"a{i}", 1)
    assert "has 10 pins" in refusal(SettingsError, lambda: pins.set("b", 1))
    pins.set("a0", 2)
    before, write = pins.all(), store.write
    for name in ("a0", "a1"):  # the version is deleted while it is pinned
        with monkeypatch.context() as patch:
            patch.setattr(store, "write", lambda *of: (write(*of), store.delete(FIRST)))
            refusal(SettingsError, lambda name=name: pins.set(name, 1))
        assert pins.all() == before
        store.write(FIRST, b"")

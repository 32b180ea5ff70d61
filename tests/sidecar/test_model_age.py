"""A model that is not replaced is too old, unless running workers report that nothing is missing from it."""

from collections.abc import Iterator

import pytest

from streampca.sidecar.served_models import ServedModels
from streampca.stores.models import Models
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses, TransformStatus
from tests.example_models import TOPIC, numbered
from tests.in_memory.store import FaultyStore
from tests.waiting import Clock

MAX_AGE_S = 600
POSITIONS = {0: 3, 1: 7}  # of the model `numbered(7)`


class Workers:
    """Workers whose clocks are wrong, and a sidecar that polls once a second."""

    def __init__(self, store: FaultyStore, clock: Clock) -> None:
        self._clock = clock
        self._statuses = ProcessStatuses(store, TOPIC)
        models = Models(store, TOPIC)
        models.save(numbered(7))
        self.served = ServedModels(models, clock, max_age_s=MAX_AGE_S)
        self.served.cache.poll()

    def report(self, name: str = "worker", **fields: object) -> None:
        status = {
            "state": "waiting", "trouble": None, "started_at": 5.0, "updated_at": self._clock.now - 86400.0,
            "messages_per_second": 0.0, "partitions": partitions(POSITIONS),
        }  # fmt: skip
        self._statuses.write(ProcessStatus(name=name, **(status | fields)))

    def is_ready_after(self, seconds: int, *reports: dict[str, object], every_s: int = 3) -> bool:
        """Whether the sidecar is ready after these seconds, in which the workers have reported every three."""
        for second in range(seconds):
            self._clock.now += 1
            if second % every_s == 0:
                for report in reports:
                    self.report(**report)
            self.served.cache.poll()
        return self.served.explain_not_ready() == {}


def partitions(positions: dict[int, int], lag: int | None = 0) -> dict[str, PartitionStatus]:
    return {str(p): PartitionStatus(position=position, lag=lag) for p, position in positions.items()}


@pytest.fixture
def workers(store: FaultyStore, clock: Clock) -> Iterator[Workers]:
    return Workers(store, clock)


def test_without_workers_a_model_is_ready_up_to_its_greatest_age(workers: Workers) -> None:
    assert workers.is_ready_after(MAX_AGE_S)
    assert not workers.is_ready_after(1)
    [reason] = workers.served.explain_not_ready().values()
    assert reason.startswith("the newest model was found 601 s ago, more than 600 s, and no running workers report")


@pytest.mark.parametrize(
    "reports",
    [
        [{}],
        [{"name": "a", "partitions": partitions({0: 3})}, {"name": "b", "partitions": partitions({1: 7})}],
        [{}, {"name": "standby", "partitions": {}}],
        [{"partitions": partitions({**POSITIONS, 2: -1, 3: 0})}],  # two partitions have no records
        [{"partitions": partitions(POSITIONS, lag=None)}],  # restarted in a quiet night
        [{}, {"name": "t", "transform": TransformStatus(output_topic="out"), "trouble": "x"}],
    ],
)  # fmt: skip
def test_a_model_is_ready_while_workers_report_that_it_has_every_record(
    workers: Workers, reports: list[dict[str, object]]
) -> None:
    assert workers.is_ready_after(3 * MAX_AGE_S, *reports)
    assert workers.is_ready_after(59)  # a report may be late
    assert not workers.is_ready_after(70)  # all workers have ended without a word
    assert workers.is_ready_after(30, *reports)


@pytest.mark.parametrize(
    "reports",
    [
        [{"partitions": partitions(POSITIONS, lag=1)}],
        [{"partitions": partitions(POSITIONS, lag=None), "state": "learning"}],
        [{"partitions": partitions({0: 3, 1: 8})}],  # learned, and not published
        [{"partitions": partitions({0: 3})}],  # nobody owns partition 1
        [{"partitions": partitions({**POSITIONS, 2: 1})}],  # the model lacks partition 2
        [{"partitions": {}}],
        [{"trouble": "models wait for partition 1"}],
        [{}, {"name": "b", "partitions": {}, "trouble": "no broker answers"}],
        [{"state": "stopped"}],
        [{"updated_at": 1.0}],  # never changes
        [{"transform": TransformStatus(output_topic="out")}],
    ],
)  # fmt: skip
def test_a_model_becomes_too_old_unless_workers_report_that_it_has_every_record(
    workers: Workers, reports: list[dict[str, object]]
) -> None:
    assert workers.is_ready_after(MAX_AGE_S, *reports)
    assert not workers.is_ready_after(1, *reports)


def test_a_newer_model_is_ready_at_once(workers: Workers, store: FaultyStore) -> None:
    assert not workers.is_ready_after(MAX_AGE_S + 1)
    Models(store, TOPIC).save(numbered(8))
    assert workers.is_ready_after(1)


def test_reports_are_read_only_when_a_model_is_about_to_become_too_old(
    workers: Workers, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = store.read
    monkeypatch.setattr(store, "read", lambda name: reads.append(name) or read(name))  # type: ignore[func-returns-value]
    assert workers.is_ready_after(MAX_AGE_S - 31, {})
    assert reads == []
    assert workers.is_ready_after(91, {})
    assert len(reads) == 11

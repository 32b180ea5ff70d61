"""What kafka-python does while a broker is silent."""

from collections.abc import Callable
from contextlib import closing
from unittest import mock

import pytest
from kafka import KafkaConsumer

from streampca.sources.kafka_python.source import KafkaPythonSource
from tests.kafka_broker import Broker
from tests.sources.backends import settings_for
from tests.sources.reader import Reader, join_group
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("long_timeouts")]

POLLS = 3
POLL_S = 0.5
MOST_TURNS = 50  # of a poll's loop; a handful are usual, and a loop that does not wait takes a thousand


def ask_for_heartbeat(reader: Reader) -> None:
    """Do nothing: a member whose partition is paused only sends heartbeats."""


def ask_for_records(reader: Reader) -> None:
    reader.source.seek({0: 0})
    reader.poll()


def ask_for_positions(reader: Reader) -> None:
    reader.source.seek({0: None})


def ask_for_assignment(reader: Reader) -> None:
    reader.source._consumer._coordinator.request_rejoin()  # type: ignore[attr-defined]


def ask_for_coordinator(reader: Reader) -> None:
    reader.source._consumer._coordinator.coordinator_dead("the test says so")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "ask_for", [ask_for_heartbeat, ask_for_records, ask_for_positions, ask_for_assignment, ask_for_coordinator]
)
def test_a_poll_waits_although_a_request_is_not_answered(
    stoppable: Broker, new_topic: str, monkeypatch: pytest.MonkeyPatch, ask_for: Callable[[Reader], None]
) -> None:
    """Each turn of its loop costs processor time, and leaves a task behind until the request times out."""
    turn = mock.Mock(side_effect=KafkaConsumer._poll_once)

    with closing(KafkaPythonSource(settings_for(stoppable, new_topic, kafka_client="kafka-python"))) as source:
        reader = join_group(source)
        is_due = source._consumer._coordinator.heartbeat.should_heartbeat
        with stoppable.frozen():
            ask_for(reader)
            wait_until(is_due, what="a heartbeat that is not answered")
            monkeypatch.setattr(KafkaConsumer, "_poll_once", lambda *given, **options: turn(*given, **options))
            reader.poll_times(POLLS, POLL_S)
            assert is_due()
    assert POLLS <= turn.call_count <= POLLS * MOST_TURNS

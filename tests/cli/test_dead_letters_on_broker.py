"""`streampca dead-letters` against the real broker: what it lists and sends again, exactly once whatever is killed."""

import json
import os
import random
import signal
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from streampca.formats.record import Record
from streampca.sources.clients import create_dead_letters
from streampca.sources.record_times import ORIGINAL_TIMESTAMP_HEADER
from tests.command_line import assert_one_line, printed, run
from tests.forked import ForkedProcess
from tests.kafka_broker import Broker
from tests.sources.backends import OnKafka
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180), pytest.mark.usefixtures("client")]

HOUR_MS = 3_600_000
NOON_MS = (int(time.time()) // 3600 - 5) * HOUR_MS  # a round hour, some hours ago
AHEAD_MS = NOON_MS + 100 * HOUR_MS  # which brokers refuse by default


def arguments(broker: Broker, topic: str, subcommand: str, *more: object) -> list[str]:
    """Return the words of `streampca dead-letters`."""
    options = ["--topic", topic, "--dead-letter-topic", f"{topic}-dead", "--bootstrap-servers", broker.bootstrap]
    return ["dead-letters", subcommand, *options, *map(str, more)]


def format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def list_letters(broker: Broker, topic: str) -> dict[str, dict[str, Any]]:
    output = printed(*arguments(broker, topic, "list", "--json"))
    return {group["reason"]: group for group in json.loads(output)["groups"]}


def replay(broker: Broker, topic: str, *more: object) -> str:
    return printed(*arguments(broker, topic, "replay", *more))


def write_letters(log: OnKafka, letters: list[tuple[int, Record, str]]) -> None:
    """Write letters as a worker does."""
    sink = create_dead_letters(log.settings(dead_letter_topic=f"{log.topic}-dead"))
    for partition, record, reason in letters:
        sink.send(partition, record, reason, f"message {record.offset}")
    sink.flush(30)
    sink.flush(0)
    sink.close()


def test_rejected_records_are_sent_again_once_and_unchanged(broker: Broker, topic: str) -> None:
    log = OnKafka(broker, topic, 3)
    broker.create_topic(f"{topic}-dead")
    own = [("trace", b"\xff\0"), ("__connect.errors.topic", b"elsewhere"), ("trace", b"again")]
    letters = [
        (0, Record(4, b"\x00\xff", NOON_MS, b"key", own), "wrong_length"),
        (2, Record(9, None, NOON_MS + HOUR_MS, b"tomb"), "undecodable"),
        (2, Record(11, b"", NOON_MS + 2 * HOUR_MS), "wrong_length"),
        (0, Record(4, b"\x00\xff", NOON_MS, b"key", own), "wrong_length"),  # repeated after a crash
        (1, Record(6, b"large", AHEAD_MS), "too_many_bytes"),
    ]
    # First, so that the new topic's leader takes records: librdkafka changes the order of those that it sends again.
    broker.produce(f"{topic}-dead", 0, [b"somebody else's"])
    write_letters(log, letters)
    wrong = list_letters(broker, topic)["wrong_length"]
    assert wrong.items() >= {
        "letters": 3, "waiting": 2, "repeated": 1, "partitions": {"0": 2, "2": 1},
        "first_timestamp": format_time(NOON_MS), "last_timestamp": format_time(NOON_MS + 2 * HOUR_MS),
    }.items()  # fmt: skip
    assert wrong["examples"][1] == {"partition": 2, "offset": 11, "message": "message 11"}
    table = " ".join(printed(*arguments(broker, topic, "list"), COLUMNS="200").split())
    row, example = f"wrong_length {topic} 0: 2, 2: 1 2 0 1 ", "wrong_length: partition 2, offset 11: message 11"
    for words in (row, example, "1 other records are not dead letters of streampca"):
        assert words in table

    assert f"4 records would be sent to {topic}" in replay(broker, topic)
    assert set(broker.end_offsets(topic).values()) == {0}
    select = ["--reason", "wrong_length", "--reason", "undecodable", "--since", format_time(NOON_MS + HOUR_MS)]
    assert f"2 records were sent to {topic}" in replay(broker, topic, *select, "--send")
    assert "0 records were sent" in replay(broker, topic, *select, "--send")
    assert f"2 records were sent to {topic}, 1 of them with the time of sending" in replay(broker, topic, "--send")
    assert "0 records were sent" in replay(broker, topic, "--send")
    assert {reason: (g["waiting"], g["replayed"]) for reason, g in list_letters(broker, topic).items()} == {
        "wrong_length": (0, 2), "undecodable": (0, 1), "too_many_bytes": (0, 1),
    }  # fmt: skip

    headers = {
        (r.partition, r.key, r.value, int(dict(r.headers).get(ORIGINAL_TIMESTAMP_HEADER, r.timestamp))): r.headers
        for r in broker.read_all(topic)
    }
    assert headers.keys() == {
        (0, b"key", b"\x00\xff", NOON_MS), (2, b"tomb", None, NOON_MS + HOUR_MS),
        (2, None, b"", NOON_MS + 2 * HOUR_MS), (1, None, b"large", AHEAD_MS),
    }  # fmt: skip
    added = [("streampca.replays", b"1"), ("streampca.dead-letter", f"{topic}-dead/0/1".encode())]
    assert headers[0, b"key", b"\x00\xff", NOON_MS] == [*own, *added]

    write_letters(log, [(0, Record(20, b"\x00\xff", NOON_MS, b"key", [*own, *added]), "wrong_length")])
    assert "1 records were sent" in replay(broker, topic, "--send")
    again = broker.read_all(topic)[1]
    assert again.headers[:-1] == [*own, ("streampca.replays", b"2")]


@pytest.mark.slow
def test_replays_that_are_killed_send_every_record_once(broker: Broker, topic: str, tmp_path: Path) -> None:
    """Some are killed, and some paused while another replay takes over; the last replay sends the rest."""
    count = 8000
    generator = random.Random(7)
    log = OnKafka(broker, topic, 2)
    broker.create_topic(f"{topic}-dead", 2)
    write_letters(log, [(i % 2, Record(i, b"%d" % i, NOON_MS, b"%d" % (i % 7)), "undecodable") for i in range(count)])
    paused: list[ForkedProcess] = []
    for attempt in range(6):
        before = sum(broker.end_offsets(topic).values())
        process = ForkedProcess(
            arguments(broker, topic, "replay", "--send"), dict(os.environ), tmp_path / f"{attempt}.log"
        )
        enough = before + generator.randrange(1, 1500)
        wait_until(
            lambda enough=enough, p=process: sum(broker.end_offsets(topic).values()) >= enough or p.poll() is not None,
            60,
            "progress",
        )
        if attempt % 3 == 2 and process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            paused.append(process)
        else:
            process.kill()
    replay(broker, topic, "--send")
    for process in paused:
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) in (0, 1)  # fenced, if it was in the middle
    assert "0 records were sent" in replay(broker, topic, "--send")
    copies = Counter(int(record.value) for record in broker.read_all(topic))
    assert sorted(copies) == list(range(count))
    assert set(copies.values()) == {1}


def test_mistakes_are_one_line_errors(broker: Broker, topic: str) -> None:
    options = ("--topic", topic, "--bootstrap-servers", broker.bootstrap)
    assert_one_line(run("dead-letters", "list", *options), "dead_letter_topic is required", 2)
    assert_one_line(run("dead-letters", "list", *options, "--dead-letter-topic", f"{topic}-no"), f"no topic {topic}-no")
    log = OnKafka(broker, topic, 1)
    broker.create_topic(f"{topic}-dead")
    assert_one_line(run(*arguments(broker, topic, "replay", "--since", "yesterday")), "--since: 'yesterday'", 2)
    write_letters(log, [(3, Record(0, b"x", NOON_MS), "undecodable")])
    assert_one_line(run(*arguments(broker, topic, "replay", "--send")), f"partition 3 of {topic}, which has 1")

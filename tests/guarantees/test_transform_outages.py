"""Outages of the broker while members are paused: each record has one output, and no partition waits for long.

With librdkafka's defaults every member hangs in a commit after such an outage (docs/kafka.md). One that hangs all the
same ends.
"""

import random
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.forked import COMMAND_LINE, ForkedProcess
from tests.guarantees import test_transform
from tests.guarantees.test_transform import Feed, Members, assert_each_once, members
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

OUTAGES, CHUNK, LONGEST_OUTAGE_S = 1, 400, 12.0
UNREAD_S = 90.0  # longest time until all partitions are read after an outage
STATIC = [{"group_instance_id": name, "kafka_client": "confluent"} for name in ("one", "two", "three")]
# Nothing but a commit of librdkafka's that hangs (docs/kafka.md) may end a member.
HANG = re.compile(
    r"^(Thread|Current thread) .*confluent/transactions.py\", line \d+ in _commit", re.MULTILINE | re.DOTALL
)
HANG_CODES = (1, 14)  # with the interpreter's lock, the second

# The first commit hangs in C code that holds the GIL, so that no thread of ours notices.
HANGS_ONCE = f"""
import ctypes, pathlib
from streampca.process import watchdog
from streampca.sources.confluent.transactions import ConfluentTransactions

watchdog.HANG_S, commit = 5.0, ConfluentTransactions._commit

def commit_or_hang(self, producer, offsets, membership):
    if not (hung := pathlib.Path({{marker!r}})).exists():
        hung.touch()
        producer.send_offsets_to_transaction(self._source.convert_offsets(offsets), membership, self.commit_s)
        ctypes.PyDLL(None).sleep(600)
    commit(self, producer, offsets, membership)

ConfluentTransactions._commit = commit_or_hang
{COMMAND_LINE}
"""


class Supervised:
    """Members with these settings that are started again when the watchdog has ended them."""

    def __init__(self, group: Members, settings: Sequence[Mapping[str, str]]) -> None:
        self._group, self._settings, self.restarts = group, settings, 0
        self._logs: dict[ForkedProcess, Path] = {}
        self.running = [self._start(number) for number in range(len(settings))]

    def wait_until_read(self, timeout_s: float = UNREAD_S) -> None:
        """Wait until all that was sent is transformed and committed."""
        ends = sum(self._group.broker.settled_ends(self._group.topic).values())

        def are_read() -> bool:
            for number, process in enumerate(self.running):
                if process.poll() is not None:
                    log = self._logs[process].read_text()
                    assert process.poll() in HANG_CODES, log[-3000:]
                    assert HANG.search(log), log[-3000:]
                    self.restarts += 1
                    self.running[number] = self._start(number)
            return self._group.position() >= ends

        self._group.wait(are_read, f"position {ends}", timeout_s)

    def _start(self, number: int) -> ForkedProcess:
        log = self._group.folder / f"member-{len(self._group.started)}.log"
        process = self._group.start(**self._settings[number])
        self._logs[process] = log
        return process


def send(broker: Broker, topic: str, seed: int) -> None:
    feed = Feed(broker, topic, seed)
    feed.send(CHUNK)
    feed.close()


def test_outages_with_paused_members_let_no_partition_wait(stoppable: Broker, topic: str, tmp_path: Path) -> None:
    chance = random.Random(19)
    with members(stoppable, topic, tmp_path) as group:
        supervised = Supervised(group, STATIC)
        send(stoppable, topic, 0)
        supervised.wait_until_read()
        for outage in range(1, 1 + OUTAGES):
            before = group.position()
            send(stoppable, topic, outage)
            group.wait_for(before + 1)
            paused = chance.sample(supervised.running, chance.choice([1, 1, 2]))
            for process in paused:
                process.send_signal(signal.SIGSTOP)
            (Broker.kill if outage % 2 else Broker.stop)(stoppable)
            time.sleep(chance.uniform(1.0, LONGEST_OUTAGE_S))  # the length of the outage is what is tested
            resumes_first = chance.random() < 0.5
            if not resumes_first:
                stoppable.start()
            for process in paused:
                process.send_signal(signal.SIGCONT)
            if resumes_first:
                stoppable.start()
            send(stoppable, topic, 1000 + outage)
            supervised.wait_until_read()
        assert supervised.restarts == 0, group.text()
        assert_each_once(stoppable, topic)


def test_a_member_whose_commit_hangs_ends_and_its_records_have_one_output(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = HANGS_ONCE.format(marker=str(tmp_path / "hung"))
    monkeypatch.setattr(test_transform, "with_polls_of", lambda records: program)
    with members(broker, topic, tmp_path) as group:
        send(broker, topic, 1)
        hanging = group.start(kafka_client="confluent")
        assert hanging.wait(60) == HANG_CODES[1]
        assert "in commit_or_hang" in (tmp_path / "member-0.log").read_text()
        group.start(kafka_client="confluent")
        group.wait_for_all()
        assert_each_once(broker, topic)

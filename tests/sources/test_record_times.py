"""Which timestamps are replaced: those that a broker would refuse, or delete at once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.sources.base import Outgoing, RecordRefusedError
from streampca.sources.dead_letters import dead_letter_headers
from streampca.sources.record_times import ORIGINAL_TIMESTAMP_HEADER, TimestampReplacer

NOW = 1_800_000_000_000
MINUTE = 60_000
HOUR = 3_600_000
DAY = 86_400_000
FOREVER = 2**63 - 1
LIMITS = [0, MINUTE, HOUR, 7 * DAY, FOREVER]
OPTIONS = {
    "message.timestamp.type": ["CreateTime", "LogAppendTime"],
    "message.timestamp.before.max.ms": LIMITS,
    "message.timestamp.after.max.ms": LIMITS,
    "message.timestamp.difference.max.ms": LIMITS,
    "retention.ms": [-1, *LIMITS],
    "cleanup.policy": ["delete", "compact", "compact,delete", ""],
    "leader.replication.throttled.replicas": [""],
}
CONFIGS = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in OPTIONS.items()})
AGES = st.sampled_from(
    [age + more for age in (*LIMITS[:4], -HOUR, -7 * DAY) for more in (0, 1, -1, -MINUTE // 2, -5 * MINUTE)]
)


def broker_keeps(configs: dict[str, Any], age: int) -> bool:
    """As Kafka's LogValidator and UnifiedLog do it, at its next check of retention."""
    if configs.get("message.timestamp.type") == "LogAppendTime":
        return True
    before, after, both, retention = (configs.get(name, FOREVER) for name in list(OPTIONS)[1:5])
    is_soon_deleted = retention >= 0 and age + min(retention // 2, 5 * MINUTE) > retention
    return (
        age <= (before if before < FOREVER else both)
        and -age <= (after if after < FOREVER else both)
        and not (is_soon_deleted and "delete" in configs.get("cleanup.policy", "delete"))
    )


@given(configs=CONFIGS, ages=st.lists(AGES, max_size=9), odd=st.sets(st.sampled_from([-1, 0, NOW * 1000, FOREVER])),
       tries=st.integers(0, 3))  # fmt: skip
def test_times_are_replaced_where_the_broker_would_not_keep_them(
    configs: dict[str, Any], ages: list[int], odd: set[int], tries: int
) -> None:
    """After a refusal, also where they are not of the last hour, then all, and then none: the clock is wrong."""
    transactions: Any = SimpleNamespace(topic_configs=lambda: {name: str(value) for name, value in configs.items()})
    times = TimestampReplacer("t", transactions, lambda: NOW / 1000)
    for _ in range(tries):
        times.begin_next_try(RecordRefusedError("invalid timestamp", 32))
    timestamps = [*(NOW - age for age in ages), *odd]
    records = [
        Outgoing("t", 0, b"v", b"k", [("a", None), (ORIGINAL_TIMESTAMP_HEADER, b"earlier")], time)
        for time in timestamps
    ]
    kept = [
        time < 0 or tries == 3 or (broker_keeps(configs, NOW - time) and (True, 0 <= NOW - time <= HOUR, False)[tries])
        for time in timestamps
    ]
    sent, replaced = times.replace(records, np.array(timestamps, np.int64))
    assert replaced == kept.count(False)
    assert list(sent) == [
        record
        if keep
        else ("t", 0, b"v", b"k", [("a", None), (ORIGINAL_TIMESTAMP_HEADER, b"%d" % record.timestamp)], -1)
        for record, keep in zip(records, kept, strict=True)
    ]
    with pytest.raises(SourceError, match="refused"):  # as it is no time's, or all were replaced
        times.begin_next_try(RecordRefusedError("refused", 10 if tries < 3 else 87))


@given(time=st.sampled_from([-1, 0, NOW]), tries=st.integers(0, 3))
def test_a_dead_letter_has_the_records_time_once_the_time_of_sending_is_refused(time: int, tries: int) -> None:
    """The clock of the machine that sends it is wrong."""
    transactions: Any = SimpleNamespace(topic_configs=dict)
    times = TimestampReplacer("t", transactions, lambda: NOW / 1000)
    for _ in range(tries):
        times.begin_next_try(RecordRefusedError("invalid timestamp", 32))
    headers = dead_letter_headers("t", 0, Record(7, b"v", time), "undecodable", "no")
    (sent,), replaced = times.replace([Outgoing("dead", None, b"v", None, headers, -1)])
    assert sent == ("dead", None, b"v", None, headers, time if tries == 3 else -1)
    assert replaced == 0

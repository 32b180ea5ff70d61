"""The group goes on when its leader was refused the topic while it assigned the partitions."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from streampca.sources.confluent import source as confluent
from streampca.sources.kafka_python.source import KafkaPythonSource
from tests.kafka_broker import PASSWORD, USER, Broker
from tests.sources.backends import OnConfluent, OnKafka
from tests.sources.reader import Reader, join_group
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("long_timeouts", "quick_metadata")]

LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_username": USER,
    "sasl_password": PASSWORD,
}


@contextmanager
def deny_topic(broker: Broker, topic: str) -> Iterator[None]:
    """While the block runs, the user may do nothing with the topic."""
    denied = ACL(
        f"User:{USER}", "*", ACLOperation.ALL, ACLPermissionType.DENY, ResourcePattern(ResourceType.TOPIC, topic)
    )
    broker.admin.create_acls([denied])
    try:
        yield
    finally:
        broker.admin.delete_acls([denied])


@pytest.mark.parametrize("second", [OnKafka, OnConfluent])
@pytest.mark.parametrize("first", [OnKafka, OnConfluent])
def test_partitions_are_assigned_once_the_leader_may_read_the_topic_again(
    broker: Broker, topic: str, first: type[OnKafka], second: type[OnKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first member leads. It is refused the topic while the second one joins, and assigns nothing to either."""
    monkeypatch.setattr(confluent, "_CHECK_GROUP_EVERY_S", 0.5)

    def group() -> Any:
        return broker.admin.describe_groups([topic])[topic]

    def poll_both() -> None:
        for reader in (leader, joining):
            reader.poll()

    def nobody_reads() -> bool:
        poll_both()
        described = group()
        if described["group_state"] != "Stable":
            return False
        assigned = [member["member_assignment"]["assigned_partitions"] for member in described["members"]]
        return assigned == [[], []]

    def is_shared() -> bool:
        poll_both()
        return sorted([*leader.owned, *joining.owned]) == [0, 1, 2, 3] and len(leader.owned) == 2

    with closing(first(broker, topic, 4)) as one, closing(second(broker, topic, 4)) as other:
        leader = join_group(one.open(**LOGIN, bootstrap_servers=broker.sasl_bootstrap))
        joining = Reader(other.open(**LOGIN, bootstrap_servers=broker.sasl_bootstrap))
        joining.poll_until(lambda: group()["group_state"] == "PreparingRebalance")  # until the leader polls
        with deny_topic(broker, topic):
            if isinstance(leader.source, KafkaPythonSource):  # it assigns what it was last told of the topic
                cluster = leader.source._connection._manager.cluster
                wait_until(lambda: topic in cluster.unauthorized_topics)
            wait_until(nobody_reads)
        wait_until(is_shared)

"""The metrics of `streampca transform`."""

from streampca.consumer_group import events
from streampca.sources.events import SourceStatus
from streampca.transform.metrics import TransformMetrics
from tests.members import make_member, notify
from tests.monitoring.prometheus import assert_includes, samples_in
from tests.transform.harness import Member, World

BATCH = events.BatchTransformed(0, 4, 3, 7, 5, 9)
FAILED = events.TransactionEnded(
    "failed", {"all": 4, "read": 4, "written": 4, "rejected": 0, "skipped": 0, "replaced": 9}, 0.0, "why"
)
COMMITTED = events.TransactionEnded(
    "committed", {"all": 6, "read": 5, "written": 3, "rejected": 1, "skipped": 1, "replaced": 2}, 0.2
)


def test_records_count_when_their_transaction_is_committed() -> None:
    metrics = TransformMetrics("t")
    member = make_member(metrics)
    notify(
        member, events.LoopTicked(SourceStatus(True, member=True)),
        events.PartitionsAssigned({0: -1, 1: 3}), BATCH, FAILED, COMMITTED,
    )  # fmt: skip
    assert_includes(
        samples_in(metrics.registry, "t"),
        {
            'streampca_transform_records_total{outcome="read"}': 5,
            'streampca_transform_records_total{outcome="written"}': 3,
            'streampca_transform_records_total{outcome="rejected"}': 1,
            'streampca_transform_records_total{outcome="skipped"}': 1,
            'streampca_transform_transactions_total{outcome="failed"}': 1,
            'streampca_transform_transactions_total{outcome="committed"}': 1,
            "streampca_transform_timestamps_replaced_total": 2,
            'streampca_transform_lag_messages{partition="0"}': 5,
            "streampca_transform_model_version": 7,
            "streampca_transform_partitions_owned": 2,
            "streampca_transform_broker_connected": 1,
        },
    )
    member.notify(events.PartitionsReleased([0, 1], lost=False))
    released = samples_in(metrics.registry, "t")
    assert 'streampca_transform_lag_messages{partition="0"}' not in released
    assert released["streampca_transform_partitions_owned"] == 0


def test_partitions_that_are_read_again_count_once() -> None:
    world, metrics = World(5), TransformMetrics("t")
    member = Member(world, also_notify=make_member(metrics).notify)
    member.transactions.failures = ["before", "after"]
    member.run()
    assert_includes(
        samples_in(metrics.registry, "t"),
        {
            "streampca_transform_partitions_owned": 1,
            'streampca_transform_records_total{outcome="written"}': 0,  # committed, but it did not know
            'streampca_transform_transactions_total{outcome="failed"}': 2,
        },
    )

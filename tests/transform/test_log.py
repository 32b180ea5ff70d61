"""The log of `streampca transform`."""

from structlog.typing import EventDict

from streampca.consumer_group import events
from streampca.sources.events import SourceStatus
from streampca.transform.log import TransformLog
from tests.members import make_member, notify
from tests.waiting import Clock

BATCH = events.BatchTransformed(0, 4, 3, 7, 5, 9)
FAILED = events.TransactionEnded(
    "failed", {"all": 4, "read": 4, "written": 4, "rejected": 0, "skipped": 0, "replaced": 9}, 0.0, "why"
)
COMMITTED = events.TransactionEnded(
    "committed", {"all": 6, "read": 5, "written": 3, "rejected": 1, "skipped": 1, "replaced": 2}, 0.2
)


def test_failures_and_waiting_are_logged_once(logs: list[EventDict]) -> None:
    clock = Clock(0.0)
    log = TransformLog()
    observed = make_member(log, clock=clock)
    notify(
        observed, *[events.StartDelayed("model", "none")] * 2, events.ModelVersionFixed(7, ["pinned"]),
        events.ModelVersionFixed(7, []), events.PartitionsAssigned({0: -1}), BATCH,
        FAILED, FAILED, COMMITTED, events.BatchTransformed(0, 1, 1, 8, 0, 10),
    )  # fmt: skip
    clock.now = 61.0
    observed.notify(events.LoopTicked(SourceStatus(True, member=True)))
    log.log_end(observed.state)
    logged = [line["event"] for line in logs if line["log_level"] != "debug"]
    assert logged == [
        "waiting for model", "model version fixed", "model version not pinned", "partitions assigned", "model in use",
        "transaction failed",
        "transactions committed again", "caught up", "transforming", "transform ended",
    ]  # fmt: skip
    assert logs[-2]["messages"] == 5
    assert logs[-1] == {"event": "transform ended", "log_level": "info", "committed": 6, "partitions": 1, "lag": 0,
                         "written": 4, "rejected": 0, "skipped": 0, "model": 8}  # fmt: skip

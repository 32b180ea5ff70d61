"""Which records are outliers depends on the records alone, whatever is killed; each is a dead letter or learned."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streampca.stream import checkpoint, screening
from streampca.stream.events import Records
from streampca.stream.fold import Fold
from streampca.stream.screening import Screening
from tests.guarantees.harness import BOTH_CLIENTS, CODEC, CONFIG, as_json, group, vectors
from tests.guarantees.test_poison import read_dead_letters
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MESSAGES, KILLS, P = 8000, 3, 0.005


def test_outliers_are_dead_letters_and_a_kill_changes_no_bit(broker: Broker, topic: str, tmp_path: Path) -> None:
    V = vectors(MESSAGES, seed=5)
    V[np.random.default_rng(0).random(MESSAGES) < 0.004] *= [-9, *[1] * (V.shape[1] - 1)]
    broker.create_topic(topic, 1)
    dead_letter_topic = broker.create_topic(f"{topic}-dead", 1)
    broker.produce(topic, 0, as_json(np.round(V, 4)))
    with group(
        broker, topic, tmp_path, BOTH_CLIENTS, dead_letter_topic=dead_letter_topic, on_outlier="dead_letter",
        outlier_p=P, poll_records=40, checkpoint_interval_s=0.1,
    ) as members:  # fmt: skip
        members.learn_with_kills(KILLS)
        files, newest = members.files(), members.newest()[0]
    records = broker.read_all(topic)
    event = CODEC.vectors_of(Records(0, records, MESSAGES, MESSAGES))
    with threadpool_limits(1):
        fold, _, rejects = screening.learn(Fold.empty(CONFIG.learning), event, CONFIG, Screening(1e4, P))
    fold = fold.reject([reject.reason for reject in rejects]).after(event.last)
    expected = checkpoint.Checkpoint(topic, newest.topic_id, 0, fold, newest.settings)
    assert files[0] == checkpoint.encode(expected)
    sent = {(offset, headers["__connect.errors.exception.class.name"], headers["__connect.errors.exception.message"])
            for offset, _, headers in read_dead_letters(broker, dead_letter_topic)}  # fmt: skip
    assert sent == {(reject.place, b"outlier", reject.message.encode()) for reject in rejects}
    assert len(sent) > 10

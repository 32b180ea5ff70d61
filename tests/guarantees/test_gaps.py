"""Messages with gaps are learned with the same bits, whatever is killed; those with too few entries are rejected."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streampca.fold import checkpoint
from streampca.fold.events import Records
from streampca.fold.fold import Fold
from streampca.fold.judge import Judge
from tests.guarantees.harness import BOTH_CLIENTS, CODEC, CONFIG, group, vectors
from tests.guarantees.test_poison import read_dead_letters
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MESSAGES, KILLS = 4000, 2


def test_a_kill_changes_no_bit_of_a_model_of_messages_with_nulls(broker: Broker, topic: str, tmp_path: Path) -> None:
    V = np.round(vectors(MESSAGES, seed=7), 4)
    missing = np.random.default_rng(1).random(V.shape) < 0.3
    missing[: MESSAGES // 4] = False
    missing[2000, 1:] = True
    values = [json.dumps([None if gone else v for v, gone in zip(row, gaps, strict=True)]).encode()
              for row, gaps in zip(V.tolist(), missing, strict=True)]  # fmt: skip
    broker.create_topic(topic, 1)
    dead_letter_topic = broker.create_topic(f"{topic}-dead", 1)
    broker.produce(topic, 0, values)
    with group(
        broker, topic, tmp_path, BOTH_CLIENTS, dead_letter_topic=dead_letter_topic, missing="impute",
        poll_records=40, checkpoint_interval_s=0.1,
    ) as members:  # fmt: skip
        members.learn_with_kills(KILLS)
        files, newest = members.files(), members.newest()[0]
    config = replace(CONFIG, learning=replace(CONFIG.learning, impute=True))
    codec = replace(CODEC, judge=Judge.of(config.learning))
    event = codec.vectors_of(Records(0, broker.read_all(topic), MESSAGES, MESSAGES))
    with threadpool_limits(1):
        fold, _ = Fold.empty(config.learning).take(event, config)
    assert files[0] == checkpoint.encode(checkpoint.Checkpoint(topic, newest.topic_id, 0, fold, newest.settings))
    assert fold.state.gaps is not None
    few = {int(place) for place in np.flatnonzero((~missing).sum(axis=1) < CONFIG.learning.min_observed)}
    assert {reject.reason for reject in event.decoded.rejects} <= {"too_few_observed"}
    assert {offset for offset, _, _ in read_dead_letters(broker, dead_letter_topic)} == few

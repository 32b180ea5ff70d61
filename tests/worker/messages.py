"""Messages of several vectors, and messages whose schemas a registry serves."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.codec import Codec
from streampca.fold.fold import Fold
from streampca.fold.judge import Judge
from streampca.fold.record import LastRecord
from streampca.formats.schemas import MemorySchemas
from streampca.pca.arrays import Array
from streampca.worker.loop import WorkerConfig
from tests.fold.streams import D, learn
from tests.fold.structured import arrow, avro, avro_datum, avro_schema
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import worker_config

SCHEMA = avro_schema({"type": "array", "items": "double"}, "v")


def config_for(env: Environment, kind: str, schemas: MemorySchemas | None = None, **options: object) -> WorkerConfig:
    codec = Codec(kind, Judge.of(env.fold_config.learning), "v", schemas)
    env.fold_config = replace(env.fold_config, format=kind, field="v")
    return replace(worker_config(env.fold_config, **options), fold=env.fold_config, codec=codec)


def arrows(V: Array, counts: Iterable[int]) -> list[bytes]:
    """Messages with these numbers of vectors."""
    ends = np.cumsum(list(counts))
    kind = pa.list_(pa.float64(), D)
    return [arrow(part.tolist(), kind=kind) for part in np.split(V, ends[:-1])]


def avros(V: Array, schema_id: int = 1) -> list[bytes]:
    return [avro(SCHEMA, avro_datum(row.tolist(), "v"), schema_id) for row in V]


def learned_in_one_batch(
    env: Environment, V: Array, counts: list[int], position: int, rejected: Sequence[str] = ()
) -> bytes:
    config = env.fold_config
    fold, _ = learn(Fold.empty(config.learning), V, [-1] * len(counts), position, config, np.array(counts))
    fold = fold.reject(rejected).after(LastRecord(position - 1, 0))
    return encode(Checkpoint(TOPIC, env.topic.id, 0, fold, config.as_dict()))

"""Records made to exhaust a decoder's memory, in a worker whose process may map no more than the shipped limit."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streampca.stream.codec import Codec
from streampca.stream.formats.schemas import MemorySchemas, WriterSchema
from tests.stream.streams import fold_config, vectors
from tests.stream.structured import framed, memory
from tests.stream.test_decoded_size import (
    ARRAYS,
    AVRO,
    MIB,
    PROTO,
    TEXTS,
    VECTOR,
    D,
    avro_of,
    avro_value,
    protobuf_value,
    stream,
    varint,
    zeros,
)
from tests.stream.test_hostile_schemas import RECURSIVE, avro_beside
from tests.worker.environment import Environment
from tests.worker.harness import make_worker, worker_config

SHIPPED = 768 * MIB  # docker-compose.yml's limit
GOOD = vectors(40, D)
PROTOBUF = memory(WriterSchema("PROTOBUF", PROTO))
HIDDEN_ROWS = pa.Array.from_buffers(pa.list_(pa.float64(), 0), 2**31 - 1, [None], children=[pa.array([], pa.float64())])


def arrow_of(row: np.ndarray) -> bytes:
    column = pa.FixedSizeListArray.from_arrays(pa.array(row), D)
    return stream(pa.schema([("v", column.type)]), [column])


def npy_of(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def avro_of_vector(row: np.ndarray) -> bytes:
    return framed(1, varint(D) + row.tobytes() + varint(0) + varint(0))


Bombs = Callable[[], list[bytes]]
RUNS: dict[str, tuple[str, MemorySchemas | None, Callable[[np.ndarray], bytes], Bombs]] = {
    "arrow": ("arrow", None, arrow_of, lambda: [
        zeros(MIB // D, batches=128), stream(pa.schema([("v", HIDDEN_ROWS.type)]), [HIDDEN_ROWS], None),
    ]),
    "json": ("json", None, lambda row: json.dumps({"v": row.tolist()}).encode(), lambda: [
        b"[" * 10**6, b'{"v":' * 10**6, *(text() for text in TEXTS.values()),
    ]),
    "npy": ("npy", None, lambda row: npy_of(f"({D},)", row.tobytes()), lambda: [
        npy_of("(99999999999,)"), npy_of("(" * 5000), npy_of("(9" + "9" * 5000 + ",)"),
    ]),
    **{f"avro {name}": ("avro", avro_of(kind), avro_of_vector, lambda: [avro_value(20_000_000)])
       for name, kind in AVRO.items()},
    "avro counts": ("avro", memory(avro_beside(ARRAYS), RECURSIVE), avro_of_vector, lambda: [
        framed(1, VECTOR + varint(10**12)), framed(1, varint(10**12)),
        framed(2, (VECTOR + b"\2") * 100_000 + VECTOR + b"\0"),
    ]),
    "protobuf": ("protobuf", PROTOBUF, lambda row: framed(1, b"\0\x0a\x40" + row.tobytes()), lambda: [
        protobuf_value(5_000_000), framed(1, b"\0" + b"\x0a\xff\xff\xff\xff\x07"), framed(1, b"\0" + b"\x13" * 10**6),
    ]),
}  # fmt: skip


def run(name: str) -> tuple[int, list[int], list[int]]:
    """A worker on good records before and after the bombs: vectors learned, offsets rejected, the bombs' offsets."""
    kind, schemas, encoded, bombs = RUNS[name]
    field = "" if kind == "npy" else "v"
    env = Environment(fold_config=fold_config(dimensions=D))
    env.fold_config = replace(env.fold_config, format=kind, field=field)
    codec = Codec(kind, D, env.fold_config.learning.largest_value, "float64", field, schemas)
    config = worker_config(env.fold_config, bad_records="dead_letter", checkpoint_interval_s=100.0)
    values = [encoded(row) for row in GOOD]
    places = range(len(values), len(values) + len(bombs()))
    env.send(0, values + bombs() + values)
    make_worker(env, replace(config, fold=env.fold_config, codec=codec)).run()
    newest = env.checkpoints.newest(0)
    assert newest is not None
    assert newest.fold.position == env.topic.logs[0].end
    return newest.fold.stats.learned, [offset for _, offset, _ in env.dead_letters], list(places)


def status(name: str) -> int:
    """Bytes, by their name in /proc."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def main() -> None:
    """Run all of them within the limit; an idle worker's memory is part of it, what it only maps is not."""
    limit = status("VmSize") - status("VmRSS") + SHIPPED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name in RUNS:
        sys.stdout.write(json.dumps([name, *run(name)]) + "\n")


@pytest.mark.slow
def test_no_bomb_ends_a_worker_within_the_shipped_limit() -> None:
    program = "from tests.worker import test_bombs; test_bombs.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-1500:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [name for name, *_ in found] == list(RUNS)
    for name, learned, rejected, bombs in found:
        assert (learned, rejected) == (2 * len(GOOD), bombs), name

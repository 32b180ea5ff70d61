"""The time to decode a vector, by format: `python -m benchmarks.decoding`.

Microseconds a vector, in batches as a worker polls them, medians of seven rounds in turn with a baseline: for JSON
`orjson.loads` alone, for the others one join of the bytes and one copy into float64, the least there can be.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.bare import MAX_POLL_RECORDS
from benchmarks.report import in_turn, parser, publish
from experiments.report import table
from streampca.formats import schema_of, writer_of
from streampca.formats.base import Layout
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.schemas import frame_of
from tests.in_memory.schemas import MemorySchemas

PART = "decoding"
MANY = 100
FULL, SMALLEST = ((64, 784, 3072), 800_000, 7), ((64,), 64 * MANY, 1)  # dimensions, numbers in a batch, rounds

NAMED, NAMES = "json, 8 named numbers (d = 8)", [f"s{i}" for i in range(8)]

Rows = NDArray[np.float64]
FRAME = frame_of(1)
TEXT = {"sensor": "first floor, left", "at": "2026-01-01T00:00:00Z"}
FORMATS = {  # a worker's format, and the vectors in a message
    "float32": ("float32", 1), "npy, float64": ("npy", 1), f"arrow, {MANY} vectors a message": ("arrow", MANY),
    "arrow, one": ("arrow", 1), "protobuf, packed doubles": ("protobuf", 1), "avro, array of doubles": ("avro", 1),
    "json": ("json", 1), "json, in an object with text": ("json", 1), NAMED: ("json", 1),
}  # fmt: skip


def encoded(name: str, X: Rows) -> list[bytes]:
    """The vectors as values; where there are fields, as the field `v`."""
    kind, many = FORMATS[name]
    if name == NAMED:
        return [orjson.dumps(dict(zip(NAMES, x.tolist(), strict=True))) for x in X]
    if kind == "json":
        return [orjson.dumps({**TEXT, "v": x.tolist()} if "text" in name else x.tolist()) for x in X]
    return writer_of(kind, schema_prefix=FRAME).write({"v": X}, None if many == 1 else np.full(len(X) // many, many))


def main() -> None:
    """Measure and write."""
    options = parser(__doc__).parse_args()
    dimensions, numbers, rounds = SMALLEST if options.smallest else FULL
    rows = [[name, *(cell(name, d, numbers, rounds) for d in dimensions)] for name in FORMATS if name != NAMED]
    rows.append([NAMED, cell(NAMED, len(NAMES), numbers, rounds), *("–" for _ in dimensions[1:])])
    publish(PART, options, table(["format", *(f"d = {d}" for d in dimensions)], rows))


def cell(name: str, d: int, numbers: int, rounds: int) -> str:
    """One cell: our time, and the baseline's in brackets."""
    kind, _ = FORMATS[name]
    X = np.random.default_rng(0).standard_normal((numbers // d // MANY * MANY, d))
    values, raw = encoded(name, X), [x.astype("<f4" if name == "float32" else "<f8").tobytes() for x in X]
    schema = schema_of(kind, Layout({"v": "numbers"}))
    field, schemas = "v" if schema or "text" in name or kind == "arrow" else "", {1: schema} if schema else {}
    if name == NAMED:
        field = ",".join(NAMES)
    codec = Codec(kind, Judge(d, 1e150), field, MemorySchemas(schemas))
    assert len(codec.decode(values).vectors) == len(X)

    def plain() -> None:
        if kind == "json":
            for value in values:
                orjson.loads(value)
        else:
            np.frombuffer(b"".join(raw), "<f4" if name == "float32" else "<f8").astype(np.float64)

    def decode_polls() -> None:
        for start in range(0, len(values), MAX_POLL_RECORDS):
            codec.decode(values[start : start + MAX_POLL_RECORDS])

    ours, other = map(median, in_turn(rounds, lambda: seconds(decode_polls), lambda: seconds(plain)))
    return f"{ours / len(X) * 1e6:.2f} ({other / len(X) * 1e6:.2f})"


def seconds(act: Callable[[], object]) -> float:
    """The time of one call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

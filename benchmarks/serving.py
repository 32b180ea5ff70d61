"""The throughput and latency of `/v1/project` beside bare FastAPI's: `python -m benchmarks.serving`.

A real sidecar process, d = 784, k = 20, beside a bare FastAPI application on the same server that parses the same
body (`orjson.loads`, `numpy.load`, `numpy.frombuffer`) and answers as many bytes. Throughput is wrk's, with eight
connections that are never idle; latency is hey's, with four connections at a third of that rate together, so that a
pause of the server is seen by every request that waits for it. Then the same while a model is published every second.
All in turn, on the loopback; medians, of throughput over fifteen rounds (a machine's speed may change within seconds),
of latency over five. Needs `apt-get install wrk hey`.
"""

import csv
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import numpy as np
import orjson

from benchmarks.report import Bar, beside, parser, publish
from benchmarks.workers import start
from experiments.report import table
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC, numbered
from tests.sidecar.process import SidecarProcess
from tests.waiting import every

PART, D, K = "serving", 784, 20
WRK_CONNECTIONS, HEY_CONNECTIONS = 8, 4
RAW = "application/octet-stream;dtype=float32"
TYPES = {"json": "application/json", "npy": "application/x-npy", "raw": RAW, "v2": "application/octet-stream"}
LATENCY_RATE = 1 / 3  # of the throughput
THROUGHPUT_BARS, BINARY_BAR, P99_BAR = {1: 0.75, 256: 0.7}, 0.8, 1.5


@dataclass(frozen=True)
class Body:
    """The body of every request."""

    kind: str
    rows: int
    path: Path
    header_length: int = 0  # of the JSON in a binary request of the Open Inference Protocol

    @property
    def headers(self) -> dict[str, str]:
        length = {"Inference-Header-Content-Length": str(self.header_length)} if self.header_length else {}
        return {"Content-Type": TYPES[self.kind], **length}

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.rows} vector{'s' if self.rows > 1 else ''}"


class Size(NamedTuple):
    """How often what is measured, and for how long."""

    rows: dict[int, float]  # vectors in a body → seconds of a round of latencies
    rounds: int
    seconds: float  # of a round of throughput
    latency_rounds: int


FULL, SMALLEST = Size({1: 6.0, 256: 12.0}, 15, 2.0, 5), Size({1: 1.0}, 1, 1.0, 1)


def main() -> None:
    """Measure and write."""
    options = parser(__doc__).parse_args()
    for tool in ("wrk", "hey"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: apt-get install wrk hey")
    with tempfile.TemporaryDirectory() as folder:
        lines, bars = measured(Path(folder), SMALLEST if options.smallest else FULL)
    publish(PART, options, lines, bars)


def measured(folder: Path, size: Size) -> tuple[list[str], list[Bar]]:
    """Both tables, and the bars."""
    models = Models(DirectoryStore(folder / "store"), TOPIC)
    models.save(numbered(1, d=D, k=K))
    bars: list[Bar] = []
    rates, latencies, ratios = [], [], []
    with SidecarProcess(folder / "store", topic=TOPIC, log_level="info") as process:
        base = process.wait_for_url()
        for body in bodies(folder, size):
            url = f"{base}/v2/models/{TOPIC}/infer" if body.kind == "v2" else f"{base}/v1/project"
            cells, share, rate = throughput(url, body, size)
            rates.append(cells)
            if body.kind == "json":
                metric = f"Sidecar throughput, share of bare FastAPI's, {body.name}"
                bars.append(Bar(metric, [share], "≥", THROUGHPUT_BARS[body.rows], "×"))
                cells, ratio = latency(url, body, size, rate * LATENCY_RATE, models)
                latencies.append(cells)
                ratios.append(ratio)
            elif body.rows > 1:
                bars.append(Bar(f"The same, {body.name}", [share], "≥", BINARY_BAR, "×"))
    head = ["body", "requests/s", "bare FastAPI, requests/s", "share"]
    others = ["body", "requests/s", "p50, ms", "p99, ms", "p99 publishing, ms", "ratio"]
    bars.append(Bar("p99 latency while publishing, as a multiple of that without", ratios, "≤", P99_BAR, "×"))
    caption = "The table of latencies was measured at a third of the highest rate:"
    return [*table(head, rates), "", caption, "", *table(others, latencies)], bars


def throughput(url: str, body: Body, size: Size) -> tuple[list[str], float, float]:
    """A row of the table, our share of bare FastAPI's throughput, and our throughput."""
    answer = httpx.post(url, content=body.path.read_bytes(), headers=body.headers, timeout=60).raise_for_status()
    with bare_process(body.kind, len(answer.content)) as bare_url:
        rate, bare, share = beside(
            lambda: wrk(bare_url, body, size.seconds), lambda: wrk(url, body, size.seconds), size.rounds
        )
    return [body.name, f"{rate:,.0f}", f"{bare:,.0f}", f"{share:.2f}"], share, rate


@contextmanager
def bare_process(kind: str, size: int) -> Iterator[str]:
    """The bare application as a process; yields its address."""
    options = {"kind": kind, "size": size, "dimensions": D}
    with start("bare", "server", orjson.dumps(options).decode()) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def latency(url: str, body: Body, size: Size, rate: float, models: Models) -> tuple[list[str], float]:
    """A row of the table, and p99 while models are published as a multiple of p99 without."""
    quiet: list[tuple[float, float]] = []
    publishing: list[tuple[float, float]] = []
    seconds = size.rows[body.rows]
    for _ in range(size.latency_rounds):
        quiet.append(hey(url, body, rate, seconds))
        with every(1.0, lambda: models.save(numbered(models.versions()[-1] + 1, d=D, k=K))):
            publishing.append(hey(url, body, rate, seconds))
    ratio = median(p[1] / q[1] for p, q in zip(publishing, quiet, strict=True))
    shown = [median(p50 for p50, _ in quiet), median(p99 for _, p99 in quiet), median(p99 for _, p99 in publishing)]
    return [body.name, f"{rate:,.0f}", *(f"{ms:.2f}" for ms in shown), f"{ratio:.2f}"], ratio


def bodies(folder: Path, size: Size) -> Iterator[Body]:
    """The bodies, written into files."""
    for rows in size.rows:
        vectors = np.random.default_rng(rows).standard_normal((rows, D))
        for kind in TYPES:
            path, (content, header_length) = folder / f"{kind}-{rows}.body", encoded(kind, vectors)
            path.write_bytes(content)
            yield Body(kind, rows, path, header_length)


def encoded(kind: str, vectors: np.ndarray) -> tuple[bytes, int]:
    """A body of this kind, and how many of its bytes are JSON in front of a binary tensor."""
    if kind == "json":
        return orjson.dumps({"vectors": vectors}, option=orjson.OPT_SERIALIZE_NUMPY), 0
    rows = vectors.astype("<f4")
    if kind == "npy":
        np.save(buffer := io.BytesIO(), rows)
        return buffer.getvalue(), 0
    if kind == "raw":
        return rows.tobytes(), 0
    parameters = {"binary_data_size": rows.nbytes}
    tensor = {"name": "vectors", "shape": rows.shape, "datatype": "FP32", "parameters": parameters}
    header = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return header + rows.tobytes(), len(header)


def wrk(url: str, body: Body, seconds: float) -> float:
    """Requests a second at full speed."""
    script = body.path.with_suffix(".lua")
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{body.path}", "rb"):read("*a")\n'
        + "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in body.headers.items())
    )
    output = run(f"wrk -t1 -c{WRK_CONNECTIONS} -d{seconds:g}s -s {script} {url}", seconds)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert rate, output
    assert "Non-2xx" not in output, output
    return float(rate[1])


def hey(url: str, body: Body, rate: float, seconds: float) -> tuple[float, float]:
    """p50 and p99 of the latency in ms, at a constant rate."""
    pace = f"-z {seconds:g}s -c {HEY_CONNECTIONS} -q {rate / HEY_CONNECTIONS:.3f}"
    output = run(f"hey {pace} -m POST -D {body.path} -T {TYPES[body.kind]} -o csv {url}", seconds)
    rows = list(csv.DictReader(io.StringIO(output)))
    assert {row["status-code"] for row in rows} == {"200"}
    times = np.array([float(row["response-time"]) for row in rows]) * 1e3
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def run(command: str, seconds: float) -> str:
    """The stdout of a load generator; its stderr is ours."""
    words = shlex.split(command)
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 60).stdout  # noqa: S603


if __name__ == "__main__":
    main()

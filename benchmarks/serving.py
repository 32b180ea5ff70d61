"""What serving costs beside the server itself: `python -m benchmarks.serving` (`--rounds`, `--seconds`).

`/v1/project` of a real sidecar process, d = 784, k = 20, against the barest FastAPI application on the same server that
parses the same body (`orjson.loads`, `numpy.frombuffer`) and answers as many bytes. Rates are wrk's, eight connections
that are never idle; response times are hey's, four connections that together ask at some third of that rate, so that a
pause of the server is seen by all whom it keeps waiting. Then the same with a model published every second.
All in turn, everything on the loopback; medians, of rates over fifteen rounds (a machine's speed may change within
seconds), of response times over five. Writes benchmarks/results/serving.md.

Needs `apt-get install wrk hey`.
"""

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from benchmarks.bare import bare_process
from benchmarks.bars import RESULTS, Bar, record
from benchmarks.generators import TYPES, Load, hey, wrk
from benchmarks.machine import machine
from streampca.pca.model import Model
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stream.model_file import PublishedModel
from tests.api.process import SidecarProcess

PART, TOPIC, D, K = "serving", "readings", 784, 20
ROUNDS, SECONDS = 15, 2.0
LATENCY_ROUNDS = 5
SLOWER, LATENCY_SECONDS = 3, {1: 6.0, 256: 12.0}
RATE_BAR, P99_BAR = 0.8, 1.5


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--kind", choices=TYPES, action="append")
    parser.add_argument("--no-latencies", action="store_true")
    given = parser.parse_args()
    for tool in ("wrk", "hey"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: apt-get install wrk hey")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given)


def measure(folder: Path, given: argparse.Namespace) -> None:
    """All tables, and the bars."""
    models = Models(DirectoryStore(folder / "store"), TOPIC)
    models.save(model(1))
    bars: list[Bar] = []
    rates, latencies = [], []
    with SidecarProcess(folder / "store", topic=TOPIC, reload_interval_s=0.2, log_level="info") as process:
        url = f"{process.url()}/v1/project"
        for load in loads(folder, given.kind or list(TYPES)):
            row, ratio, rate = rates_of(url, load, given.rounds, given.seconds)
            rates.append(row)
            print(row, flush=True)
            if load.kind == "json":
                bars.append(Bar(PART, f"requests/s of /v1/project, {load.name}", ratio, "≥", RATE_BAR, "×"))
            if not given.no_latencies and load.kind == "json":
                row, ratio = latencies_of(url, load, min(given.rounds, LATENCY_ROUNDS), rate / SLOWER, models)
                latencies.append(row)
                print(row, flush=True)
                bars.append(Bar(PART, f"p99 while models are published, {load.name}", ratio, "≤", P99_BAR, "×"))
    if not given.no_latencies:
        write(rates, latencies, bars)


def rates_of(url: str, load: Load, rounds: int, seconds: float) -> tuple[str, float, float]:
    """A row of the table of rates, our share of the bare application's rate, and our rate."""
    answer = asked(url, load)
    ours, bare = [], []
    with bare_process(load.kind, len(answer), D) as bare_url:
        for _ in range(rounds):
            bare.append(wrk(bare_url, load, seconds))
            ours.append(wrk(url, load, seconds))
    ratio = median(o.rate / b.rate for o, b in zip(ours, bare, strict=True))
    rate = median(o.rate for o in ours)
    figures = [f"{rate:,.0f}", f"{median(b.rate for b in bare):,.0f}", f"{ratio:.2f}"]
    figures += [f"{median(o.p50 for o in ours):.2f}", f"{median(o.p99 for o in ours):.2f}"]
    return f"| {load.name} | {load.body.stat().st_size:,} | " + " | ".join(figures) + " |", ratio, rate


def latencies_of(url: str, load: Load, rounds: int, rate: float, models: Models) -> tuple[str, float]:
    """A row of the table of response times, and how many times as long p99 is while models are published."""
    quiet: list[tuple[float, float]] = []
    publishing: list[tuple[float, float]] = []
    seconds = LATENCY_SECONDS[load.rows]
    for _ in range(rounds):
        quiet.append(hey(url, load, rate, seconds))
        with published_each_second(models):
            publishing.append(hey(url, load, rate, seconds))
    ratio = median(p[1] / q[1] for p, q in zip(publishing, quiet, strict=True))
    cells = [f"{median(pair[i] for pair in some):.2f}" for some in (quiet, publishing) for i in (0, 1)]
    return f"| {load.name} | {rate:,.0f} | " + " | ".join(cells) + f" | {ratio:.2f} |", ratio


@contextlib.contextmanager
def published_each_second(models: Models) -> Iterator[None]:
    """A thread that publishes; it lives in this process, which does nothing else meanwhile."""
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(1.0):
            models.save(model(models.versions()[-1] + 1))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def model(version: int) -> PublishedModel:
    """One as a worker would publish it."""
    rng = np.random.default_rng(version)
    axes = np.ascontiguousarray(np.linalg.qr(rng.standard_normal((D, K)))[0].T)
    variance = np.sort(rng.uniform(1, 9, K))[::-1].copy()
    learned = Model(axes, variance, rng.standard_normal(D), float(variance.sum() * 2), float(version))
    return PublishedModel(version, learned, TOPIC, published_at=time.time())


def loads(folder: Path, kinds: list[str]) -> Iterator[Load]:
    """The bodies, written into files."""
    for rows in (1, 256):
        vectors = np.random.default_rng(rows).standard_normal((rows, D))
        for kind in kinds:
            path = folder / f"{kind}-{rows}.body"
            path.write_bytes(_BODIES[kind](vectors))
            yield Load(kind, rows, path)


def as_json(vectors: np.ndarray) -> bytes:
    return orjson.dumps({"vectors": vectors}, option=orjson.OPT_SERIALIZE_NUMPY)


def as_npy(vectors: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, vectors.astype("<f4"))
    return buffer.getvalue()


def as_raw(vectors: np.ndarray) -> bytes:
    return vectors.astype("<f4").tobytes()


_BODIES: dict[str, Callable[[np.ndarray], bytes]] = {"json": as_json, "npy": as_npy, "raw": as_raw}


def asked(url: str, load: Load) -> bytes:
    """One answer."""
    request = urllib.request.Request(url, load.body.read_bytes(), {"Content-Type": TYPES[load.kind]})  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - ours
        body: bytes = answer.read()
    return body


def write(rates: list[str], latencies: list[str], bars: list[Bar]) -> None:
    """The page, and the rows of the bars."""
    text = (
        f"# Serving\n\n`/v1/project`, d = {D}, k = {K}, one process each. Made by `python -m benchmarks.{PART}` "
        "(`apt-get install wrk hey`).\n\nAs fast as eight connections go (wrk), against a bare FastAPI application "
        "that parses the same body\nand answers as many bytes:\n\n"
        "| body | bytes | requests/s | bare, requests/s | ratio | p50, ms | p99, ms |\n|---|---|---|---|---|---|---|\n"
        + "\n".join(rates)
        + "\n\nAt a third of that rate (hey), response times in ms, and how many times as long the 99th percentile is "
        "while a model is published every second:\n\n"
        "| body | requests/s | p50, quiet | p99, quiet | p50, publishing | p99, publishing | ratio of p99 |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(latencies) + f"\n\n{machine()}\n"
    )
    (RESULTS / f"{PART}.md").write_text(text)
    record(PART, bars)


if __name__ == "__main__":
    main()

"""The load generators of `benchmarks.serving`: wrk at full speed, hey at a constant rate."""

import csv
import io
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WRK_CONNECTIONS, HEY_CONNECTIONS = 8, 4
RAW = "application/octet-stream;dtype=float32"
TYPES = {"json": "application/json", "npy": "application/x-npy", "raw": RAW, "v2": "application/octet-stream"}


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
    each = f"-z {seconds:g}s -c {HEY_CONNECTIONS} -q {rate / HEY_CONNECTIONS:.3f}"
    output = run(f"hey {each} -m POST -D {body.path} -T {TYPES[body.kind]} -o csv {url}", seconds)
    rows = list(csv.DictReader(io.StringIO(output)))
    assert {row["status-code"] for row in rows} == {"200"}
    times = np.array([float(row["response-time"]) for row in rows]) * 1e3
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def run(command: str, seconds: float) -> str:
    """The stdout of a load generator; its stderr is ours."""
    words = shlex.split(command)
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 60).stdout  # noqa: S603

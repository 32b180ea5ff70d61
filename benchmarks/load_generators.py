"""The load generators of `benchmarks.serving`: wrk at full speed, hey at a constant rate."""

import csv
import io
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WRK_CONNECTIONS, HEY_CONNECTIONS = 8, 4
TYPES = {"json": "application/json", "npy": "application/x-npy", "raw": "application/octet-stream"}


@dataclass(frozen=True)
class Body:
    """The body of every request."""

    kind: str
    rows: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.rows} vector{'s' if self.rows > 1 else ''}"


@dataclass(frozen=True)
class Served:
    """Requests a second, and latencies in ms."""

    rate: float
    p50: float
    p99: float


_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def wrk(url: str, body: Body, seconds: float) -> Served:
    """At full speed."""
    script = body.path.with_suffix(".lua")
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{body.path}", "rb"):read("*a")\n'
        f'wrk.headers["Content-Type"] = "{TYPES[body.kind]}"\n'
    )
    command = ["wrk", "-t1", f"-c{WRK_CONNECTIONS}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    output = run(command, seconds)
    assert "Non-2xx" not in output, output

    def time_of(share: int) -> float:
        found = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", output)
        assert found, output
        return float(found[1]) * _UNITS[found[2]]

    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert rate, output
    return Served(float(rate[1]), time_of(50), time_of(99))


def hey(url: str, body: Body, rate: float, seconds: float) -> tuple[float, float]:
    """p50 and p99 of the latency in ms, at a constant rate."""
    command = [
        "hey",
        "-z",
        f"{seconds:g}s",
        "-c",
        str(HEY_CONNECTIONS),
        "-q",
        f"{rate / HEY_CONNECTIONS:.3f}",
        "-m",
        "POST",
    ]
    command += ["-D", str(body.path), "-T", TYPES[body.kind], "-o", "csv", url]
    rows = list(csv.DictReader(io.StringIO(run(command, seconds))))
    assert {row["status-code"] for row in rows} == {"200"}
    times = np.array([float(row["response-time"]) for row in rows]) * 1e3
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def run(command: list[str], seconds: float) -> str:
    """The stdout of a load generator; its stderr is ours."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 60).stdout  # noqa: S603

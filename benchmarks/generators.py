"""The load generators that serving is measured with: wrk as fast as it goes, hey at a steady rate."""

import csv
import io
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CONNECTIONS, ASKING = 8, 4  # of wrk, and of hey
TYPES = {"json": "application/json", "npy": "application/x-npy", "raw": "application/octet-stream"}


@dataclass(frozen=True)
class Load:
    """What is sent again and again."""

    kind: str
    rows: int
    body: Path

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.rows} vector{'s' if self.rows > 1 else ''}"


@dataclass(frozen=True)
class Served:
    """Requests a second, and response times in ms."""

    rate: float
    p50: float
    p99: float


_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def wrk(url: str, load: Load, seconds: float) -> Served:
    """As fast as the connections go."""
    script = load.body.with_suffix(".lua")
    script.write_text(
        f'wrk.method = "POST"\nwrk.body = io.open("{load.body}", "rb"):read("*a")\n'
        f'wrk.headers["Content-Type"] = "{TYPES[load.kind]}"\n'
    )
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--latency", "-s", str(script), url]
    told = tool(command, seconds)
    assert "Non-2xx" not in told, told

    def time_of(share: int) -> float:
        found = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", told)
        assert found, told
        return float(found[1]) * _UNITS[found[2]]

    rate = re.search(r"Requests/sec:\s+([\d.]+)", told)
    assert rate, told
    return Served(float(rate[1]), time_of(50), time_of(99))


def hey(url: str, load: Load, rate: float, seconds: float) -> tuple[float, float]:
    """p50 and p99 of the response time in ms, at a steady rate."""
    command = ["hey", "-z", f"{seconds:g}s", "-c", str(ASKING), "-q", f"{rate / ASKING:.3f}", "-m", "POST"]
    command += ["-D", str(load.body), "-T", TYPES[load.kind], "-o", "csv", url]
    told = tool(command, seconds)
    rows = list(csv.DictReader(io.StringIO(told)))
    assert {row["status-code"] for row in rows} == {"200"}
    times = np.array([float(row["response-time"]) for row in rows]) * 1e3
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def tool(command: list[str], seconds: float) -> str:
    """What a load generator says."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout  # noqa: S603

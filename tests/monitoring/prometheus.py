"""A real Prometheus on the loopback interface, and the metrics that an expression uses."""

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.java_server import unavailable
from tests.ports import free_ports
from tests.waiting import is_ready, wait_until

DOCKER = Path(__file__).parents[2] / "docker"
RULES = DOCKER.parent / "helm" / "streampca" / "files" / "rules.yaml"
UNPACKED = Path.home() / ".cache" / "streampca-prometheus" / "usr" / "bin"  # where `make prometheus` unpacks it


def program(name: str) -> str:
    """The path of prometheus or promtool. Without it the test is skipped, and fails in CI."""
    found = shutil.which(name) or shutil.which(name, path=UNPACKED)
    if found is None:
        unavailable(f"{name} is not installed: make prometheus")
    return found


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression uses, recorded ones included; a histogram's name is without its suffix."""
    names = set(re.findall(r"\b(?:streampca[_:]|process_|up\b)[a-z0-9_:]*", re.sub(r'"[^"]*"', "", expression)))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}


def described(registry: CollectorRegistry) -> dict[str, str]:
    """Name, as Prometheus shows it, and help text of every streampca metric in a registry."""
    families = [family for family in registry.collect() if family.name.startswith("streampca_")]
    suffixes = {"counter": "_total", "info": "_info"}
    return {f.name + suffixes.get(f.type, ""): f.documentation for f in families}


def samples_of(text: str, topic: str) -> dict[str, float]:
    """Samples by name and labels, as `name{label="value"}`; without the topic, which all have."""
    found = {}
    for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
        assert sample.labels.pop("topic") == topic
        labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
        found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def samples_in(registry: CollectorRegistry, topic: str) -> dict[str, float]:
    """The samples as a registry exposes them."""
    return samples_of(generate_latest(registry).decode(), topic)


def assert_includes(samples: Mapping[str, float], expected: Mapping[str, Any]) -> None:
    """Assert that the samples have these values."""
    assert {name: samples.get(name) for name in expected} == expected


class PrometheusProcess:
    """A Prometheus process, from entry to exit."""

    def __init__(self, config: Path) -> None:
        self._config, self._port = config, free_ports(1)[0]

    def __enter__(self) -> Self:
        folder = self._config.parent
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"), f"--config.file={self._config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn",
                ],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=60)
        wait_until(self._ready, 60, "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(60)

    def query(self, expression: str) -> list[float]:
        """The current values of an expression, except NaN."""
        answer = self._http.post("/api/v1/query", data={"query": expression, "time": str(time.time())}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return [float(series["value"][1]) for series in answer["data"]["result"] if series["value"][1] != "NaN"]

    def firing(self) -> set[str]:
        """The names of the alerts that are firing."""
        alerts = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._config.parent / "prometheus.log").read_text()
        return is_ready(f"http://127.0.0.1:{self._port}/-/ready")

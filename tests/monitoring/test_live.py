"""A real Prometheus scrapes a real worker and a real sidecar: every panel has data, alerts fire and resolve."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from streampca.stores.pins import Pins
from tests.example_models import models_in
from tests.forked import ForkedProcess
from tests.guarantees.harness import Group, as_json, group, vectors
from tests.guarantees.test_transform import Members
from tests.kafka_broker import Broker
from tests.monitoring.prometheus import DOCKER, RULES, PrometheusProcess, program
from tests.monitoring.test_dashboard import EXPRESSIONS
from tests.ports import free_ports
from tests.sidecar.process import SidecarProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

TICK = "200ms"  # between scrapes, and between evaluations of the rules
PARTITIONS = 4  # fewer have no sampling error
ROLES = ("worker", "sidecar", "transform")
WINDOW = "3s"  # replaces every 5m, 1h, …


def with_short_windows(rules: str) -> str:
    """The rules with short windows and no pending time; otherwise the expressions stay the same."""
    rules = re.sub(r"\[\d+[mhd]\]", f"[{WINDOW}]", rules)
    rules = re.sub(r"offset \d+[mhd]", f"offset {WINDOW}", rules)
    return re.sub(r"(?<=for: )\d+[mh]", "0s", rules)


@dataclass
class Stack:
    """Worker, sidecar and Prometheus; restarted processes keep their ports."""

    workers: Group
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(ROLES, free_ports(3), strict=True)))
    prometheus: PrometheusProcess = field(init=False)
    sidecar: SidecarProcess | None = None
    rounds: int = 0

    def start_worker(self) -> None:
        self.workers.start(metrics_port=self.ports["worker"], dead_letter_topic=f"{self.workers.topic}-dead")

    def start_sidecar(self) -> None:
        port = self.ports["sidecar"]
        self.sidecar = SidecarProcess(self.workers.store, topic=self.workers.topic, port=port).__enter__()
        self.sidecar.wait_for_url()

    def start_transform(self) -> ForkedProcess:
        members = Members(self.workers.broker, self.workers.topic, self.workers.folder)
        return members.start(metrics_port=self.ports["transform"], emit="coordinates,residual")

    def stop_sidecar(self) -> None:
        if self.sidecar is not None:
            self.sidecar.__exit__()
        self.sidecar = None

    def send_traffic(self) -> None:
        """Produce vectors, a delete and an invalid record, and send a request."""
        self.rounds += 1
        for partition in range(PARTITIONS):
            rows = as_json(vectors(40, PARTITIONS * self.rounds + partition))
            self.workers.broker.produce(self.workers.topic, partition, [*rows, b"null", b"not a vector"])
        url = f"http://127.0.0.1:{self.ports['sidecar']}/v1/project"
        httpx.post(url, json={"vectors": vectors(1, self.rounds).tolist()}, timeout=60)  # 503 until there is a model

    def config(self, folder: Path) -> Path:
        """The shipped configuration, with local addresses and short intervals."""
        shipped: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
        shipped["global"] = dict.fromkeys(shipped["global"], TICK)
        jobs = {job["job_name"] for job in shipped["scrape_configs"]} - {"prometheus"}
        shipped["scrape_configs"] = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{self.ports[job.split('-')[1]]}"]}]}
            for job in jobs
        ]
        folder.mkdir()
        (folder / "rules.yaml").write_text(with_short_windows(RULES.read_text()))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))
        return folder / "prometheus.yml"

    def wait(self, condition: Callable[[], bool], what: str | Callable[[], str], *, send_traffic: bool = False) -> None:
        def holds() -> bool:
            if send_traffic:
                self.send_traffic()
            return condition()

        def awaited() -> str:
            return f"firing: {sorted(self.prometheus.firing())}; {what() if callable(what) else what}"

        self.workers.wait(holds, awaited, 45)


@pytest.fixture(scope="module")
def stack(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    program("prometheus")  # skips or fails before anything is started
    folder = tmp_path_factory.mktemp("monitoring")
    topic = folder.name.replace("_", "-")
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(f"{topic}-dead")
    broker.create_topic(f"{topic}-output", PARTITIONS)
    with group(broker, topic, folder / "group") as workers:
        running = Stack(workers)
        running.start_worker()
        running.start_sidecar()
        transform = running.start_transform()
        try:
            with PrometheusProcess(running.config(folder / "prometheus")) as running.prometheus:
                yield running
        finally:
            transform.kill()
            running.stop_sidecar()


def test_every_panel_has_data(stack: Stack) -> None:
    topic, models = stack.workers.topic, models_in(stack.workers.store, stack.workers.topic)
    stack.wait(lambda: bool(models.versions()), "a model to pin", send_traffic=True)
    Pins(models.store, topic).set("first", models.versions()[-1])
    selected = {"$__rate_interval": WINDOW, "$topic": topic, "$cluster": "", "$namespace": ""}
    missing = {re.sub(r"\$\w+", lambda found: selected[found[0]], expr) for expr in EXPRESSIONS}

    def all_seen() -> bool:
        missing.difference_update([expr for expr in missing if stack.prometheus.query(expr)])
        return not missing

    stack.wait(all_seen, lambda: f"data for every panel, also for {sorted(missing)},", send_traffic=True)


def test_dead_letters_raise_an_alert_until_they_stop(stack: Stack) -> None:
    stack.wait(lambda: "StreampcaDeadLetters" in stack.prometheus.firing(), "the alert", send_traffic=True)
    stack.wait(lambda: "StreampcaDeadLetters" not in stack.prometheus.firing(), "its resolution")


def test_an_unreachable_broker_raises_an_alert_until_it_is_back(stack: Stack, stoppable: Broker) -> None:
    stack.wait(lambda: "StreampcaBrokerAway" not in stack.prometheus.firing(), "no alert")
    stoppable.stop()
    stack.wait(lambda: "StreampcaBrokerAway" in stack.prometheus.firing(), "the alert")
    stoppable.start()
    stack.wait(lambda: "StreampcaBrokerAway" not in stack.prometheus.firing(), "its resolution")
    stack.send_traffic()
    stack.workers.wait_until_learned()


def test_a_stopped_process_raises_an_alert_until_it_is_restarted(stack: Stack) -> None:
    down = {"StreampcaWorkerDown", "StreampcaNoWorker", "StreampcaSidecarDown"}
    stack.wait(lambda: not down & stack.prometheus.firing(), "no alert")
    stack.workers.workers[-1].kill()
    stack.stop_sidecar()
    wait_until(lambda: down <= stack.prometheus.firing(), 60, f"{down}")
    stack.start_worker()
    stack.start_sidecar()
    stack.wait(lambda: not down & stack.prometheus.firing(), "the resolution of the alerts")

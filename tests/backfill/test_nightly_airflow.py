"""The example for Airflow: its commands, as bash runs them, learn a night's files and audit the topic."""

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from streampca.fold.partitions import backfill_partition
from tests.backfill.rows import table
from tests.command_line import variables
from tests.guarantees.harness import D, K, as_json, group, vectors
from tests.kafka_broker import Broker

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nightly_airflow.py"
DAY = {"ds": "2026-01-31", "ds_nodash": "20260131"}


class Dag:
    """Airflow's `DAG` and operators, as far as the example uses them."""

    operators: list["Dag"]

    def __init__(self, *_: Any, **options: Any) -> None:
        self.options, self.after = options, list[Dag]()
        if "bash_command" in options:
            self.operators.append(self)

    def __enter__(self) -> None:
        Dag.operators = []

    def __exit__(self, *_: object) -> None:
        pass

    def __rshift__(self, other: "Dag") -> None:
        other.after.append(self)


def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of the tasks in their order, for one day."""
    for name, attribute in (("airflow.sdk", "DAG"), ("airflow.providers.standard.operators.bash", "BashOperator")):
        module = ModuleType(name)
        setattr(module, attribute, Dag)
        monkeypatch.setitem(sys.modules, name, module)
    runpy.run_path(str(EXAMPLE))
    first, second = Dag.operators
    assert (first.after, second.after) == ([], [first])
    texts = [operator.options["bash_command"] for operator in Dag.operators]
    for name, value in DAY.items():
        texts = [text.replace(f"{{{{ {name} }}}}", value) for text in texts]
    return texts


@pytest.mark.broker
def test_a_night_is_learned_and_the_topic_audited(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake" / f"day={DAY['ds']}"
    lake.mkdir(parents=True)
    pq.write_table(table(vectors(300, seed=1)), lake / "part.parquet")
    broker.create_topic(topic)
    broker.produce(topic, 0, as_json(vectors(200, seed=0)))
    with group(broker, topic, tmp_path) as members:
        members.start()
        members.wait_until_learned()
        broker.produce(topic, 0, as_json(vectors(200, seed=2)))
        members.wait_until_learned()
        environment = os.environ | {"LAKE": str(tmp_path / "lake")}
        environment |= variables({"topic": topic, "dimensions": D, "components": K})
        environment |= variables({"store": members.store, "bootstrap_servers": broker.bootstrap})
        program = f'streampca() {{ {shlex.quote(sys.executable)} -m streampca "$@"; }}; '
        outputs = [
            subprocess.run(
                ["bash", "-c", program + command], env=environment, capture_output=True, text=True, timeout=120
            )
            for command in commands(monkeypatch) * 2  # a task that is retried says the same
        ]
    assert [output.returncode for output in outputs] == [0] * 4, outputs
    for night, audit in (outputs[:2], outputs[2:]):
        assert "300 rows learned" in night.stdout
        assert "the checkpoint has the same bytes" in " ".join(audit.stdout.split())
    assert backfill_partition(int(DAY["ds_nodash"])) in members.checkpoints.partitions()

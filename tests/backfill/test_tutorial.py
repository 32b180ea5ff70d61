"""The commands of docs/backfill.md run."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.backfill.rows import make_rows, make_table
from tests.command_line import succeeded
from tests.kafka_broker import Broker
from tests.ports import free_ports
from tests.waiting import answer_of, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "backfill.md").read_text(encoding="utf-8")
D = 128


def fill(folder: Path, seed: int, n: int = 1000) -> None:
    folder.mkdir()
    pq.write_table(make_table(make_rows(n, seed, D)), folder / "part.parquet", row_group_size=300)


@pytest.mark.broker
def test_a_folder_of_parquet_becomes_a_model_that_is_served_and_goes_on(
    broker: Broker, new_topic: str, tmp_path: Path
) -> None:
    fill(tmp_path / "lake", 0)
    broker.produce(new_topic, 0, [b"[%s]" % b",".join(b"%g" % x for x in row) for row in make_rows(300, 1, D)])
    ports = free_ports(2)
    environment = os.environ | {
        "STREAMPCA_BOOTSTRAP_SERVERS": broker.bootstrap, "STREAMPCA_METRICS_PORT": str(ports[0]),
        "STREAMPCA_PORT": str(ports[1]), "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    lines = [shlex.split(line) for line in re.findall(r"^    (.*)$", PAGE, re.MULTILINE)]
    with ExitStack() as running:
        for words in lines[1:]:  # all but pip
            variables = dict(word.split("=", 1) for word in words if re.match(r"STREAMPCA_\w+=", word))
            environment |= variables
            environment["STREAMPCA_TOPIC"] = new_topic
            if "streampca" not in words:
                continue
            arguments = words[words.index("streampca") + 1 :]
            command = [sys.executable, "-m", "streampca", *arguments]
            if arguments[0] in ("worker", "serve"):
                process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
                running.callback(process.wait)
                running.callback(process.terminate)
            else:
                succeeded(*command, cwd=tmp_path, env=environment)
        wait_until(lambda: version(f"http://127.0.0.1:{ports[1]}/v1/model") == 1300, 90, "a model of all rows")


def version(url: str) -> int:
    answer = answer_of(url)
    return int(answer.json().get("version", 0)) if answer is not None else 0

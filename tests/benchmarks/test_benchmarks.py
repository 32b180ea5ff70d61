"""Every benchmark runs at its smallest size and writes its tables into the page."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import workers
from benchmarks.report import PAGE, PARTS
from benchmarks.workers import ROOT
from experiments.report import block
from tests.kafka_broker import Broker

ON_A_BROKER = ("throughput", "transform", "memory", "scaling", "start", "restart")


def run(part: str, folder: Path, *options: str) -> str:
    """Run one benchmark on a copy of the page and return its new block."""
    page = folder / "performance.md"
    shutil.copy(PAGE, page)
    page.write_text(page.read_text().replace(f"<!-- {part} -->", f"<!-- {part} -->\nold figures"))
    command = [sys.executable, "-m", f"benchmarks.{part}", "--smallest", "--page", str(page), *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=250)
    text = page.read_text()
    for other in PARTS:
        if other != part:
            assert block(text, other) == block(PAGE.read_text(), other)
    found = block(text, part)
    assert "old figures" not in found
    assert "\n|---|" in found
    return found


@pytest.mark.parametrize("part", [part for part in PARTS if part not in (*ON_A_BROKER, "serving")])
def test_a_benchmark_runs(part: str, tmp_path: Path) -> None:
    run(part, tmp_path)


@pytest.mark.broker
@pytest.mark.parametrize("part", ON_A_BROKER)
def test_a_benchmark_on_a_broker_runs(broker: Broker, part: str, tmp_path: Path) -> None:
    topics = set(broker.admin.list_topics())
    run(part, tmp_path, "--broker", broker.bootstrap)
    assert set(broker.admin.list_topics()) - topics <= {"__consumer_offsets", "__transaction_state"}


def test_a_benchmark_without_a_running_broker_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    @contextmanager
    def start(folder: Path) -> Iterator[str]:
        assert folder.parent.is_dir()
        steps.append("started")
        yield "broker"
        steps.append("stopped")

    monkeypatch.setattr(workers, "Broker", start)
    with workers.broker_of(workers.parser_with_broker("").parse_args([])) as broker:
        steps.append(broker)
    assert steps == ["started", "broker", "stopped"]


def test_the_serving_benchmark_runs(tmp_path: Path) -> None:
    if tools := [tool for tool in ("wrk", "hey") if shutil.which(tool) is None]:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"not installed: {' '.join(tools)}")
    run("serving", tmp_path)


def test_the_stderr_of_a_failing_child_is_shown() -> None:
    code = "from benchmarks.workers import bare_rate; bare_rate('consumer')"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "missing 4 required positional arguments" in found.stderr


@pytest.mark.parametrize(
    ("name", "block_name", "table"), [("streams", "streams", "accuracy"), ("hard_streams", "hard", "hard_streams")]
)
def test_the_streams_benchmarks_run(name: str, block_name: str, table: str, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text(f"<!-- {block_name} -->\nold figures\n<!-- /{block_name} -->\n")
    command = [sys.executable, "-m", f"benchmarks.{name}", "--smallest", "--seed", "1", "--page", str(page)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=250)
    assert block(page.read_text(), block_name).startswith("| stream |")
    assert page.with_name(f"{table}.csv").read_text().count("\n") > 10

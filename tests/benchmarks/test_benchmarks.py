"""Every benchmark runs at its smallest size and writes its tables into the page."""

import contextlib
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.report import BARS, PAGE, PARTS
from experiments.report import block
from tests.forked import ForkedProcess
from tests.guarantees import worker_process
from tests.java_server import unavailable
from tests.kafka_broker import Broker

ON_A_BROKER = ("throughput", "transform", "memory", "scaling", "start", "restart")


def main(part: str, *options: object) -> None:
    """`python -m benchmarks.<part> options…` in this process; it forks its workers, because times do not matter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", [part, *map(str, options)])
        patched.setattr(worker_process, "own_interpreter", ForkedProcess)
        patched.delitem(sys.modules, f"benchmarks.{part}", raising=False)  # another part may import it
        with contextlib.suppress(SystemExit):
            runpy.run_module(f"benchmarks.{part}", run_name="__main__")


def run(part: str, folder: Path, *options: str) -> str:
    """Run one benchmark on copies of the pages and return its new block."""
    shutil.copy(BARS, folder)
    page = Path(shutil.copy(PAGE, folder))
    page.write_text(page.read_text().replace(f"<!-- {part} -->", f"<!-- {part} -->\nold figures"))
    main(part, "--smallest", "--folder", folder, *options)
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


def test_the_serving_benchmark_runs(tmp_path: Path) -> None:
    if tools := [tool for tool in ("wrk", "hey") if shutil.which(tool) is None]:
        unavailable(f"not installed: {' '.join(tools)}")
    run("serving", tmp_path)


@pytest.mark.parametrize(
    ("name", "blocks", "table"),
    [("streams", {"streams": "| stream |"}, "accuracy"),
     ("hard_streams", {"hard": "| stream |", "tails": "| lengths |"}, "hard_streams")],
)  # fmt: skip
def test_the_streams_benchmarks_run(name: str, blocks: dict[str, str], table: str, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("".join(f"<!-- {each} -->\nold figures\n<!-- /{each} -->\n" for each in blocks))
    main(name, "--smallest", "--seed", 1, "--folder", tmp_path)
    for each, start in blocks.items():
        assert block(page.read_text(), each).startswith(start)
    assert page.with_name(f"{table}.csv").read_text().count("\n") > 10

"""The demo, run as a new user would: with real processes, and cleaned up at the end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import expect
from pyarrow import parquet

from streampca.cli.inspect import describe_store
from streampca.demo.run import choose_stream
from streampca.files.synthetic import MACHINE
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from tests.command_line import assert_one_line, run
from tests.docs_tables import DOCS
from tests.java_server import unavailable
from tests.page.browser import check_page_logs, find_browser, start_chromium
from tests.waiting import wait_until

pytest.importorskip("confluent_kafka")

WITHIN_S = 120.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("STREAMPCA_")}


@contextmanager
def run_demo(
    *arguments: object, folder: Path, ends_by: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[str]]:
    """Run a demo. At the end of the block it gets a signal, and must end without an error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streampca", "demo", "--port", "0", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(folder), "STREAMPCA_TOPIC": "must-not-matter"},
    )
    try:
        yield process
    finally:
        process.send_signal(ends_by)
        _, errors = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, errors) == (0, "")


def list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


FIRST_OUTPUT = (
    r"first output in topic readings-projected:\n"
    r"  streampca.transform {\"model_version\":\d+,\"partition\":\d,\"offset\":\d+,\"topic_id\":\"\"}\n"
    r"  {\"coordinates\":\["
)


def count_learned(output: str) -> int:
    """Return how many messages the newest model has learned."""
    numbers = re.findall(r"learned: ([\d,]+)", output) or ["0"]
    return int(numbers[-1].replace(",", ""))


def has_shown_all(output: str) -> bool:
    """Return whether the model has improved, and transform has written an output."""
    shares = [float(share) for share in re.findall(r"subspace found: ([\d.]+)%", output)]
    improves = len(shares) >= 3 and shares[-1] > max(shares[0], 95)
    return improves and count_learned(output) > 10_000 and bool(re.search(FIRST_OUTPUT, output))


def read_output_until(condition: Callable[[str], bool], process: subprocess.Popen[str]) -> str:
    """Return the output of the demo once the condition holds for it. A line is printed every two seconds."""
    output = ""
    deadline = time.monotonic() + WITHIN_S
    for line in process.stdout:
        output += line
        if condition(output):
            return output
        assert time.monotonic() < deadline, output
    raise AssertionError(f"the demo ended: {output}\n{process.stderr.read()}")


def test_finds_the_subspace_and_projects_until_it_is_stopped(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with run_demo("--store", store, folder=tmp_path, ends_by=signal.SIGINT) as process:
        output = read_output_until(has_shown_all, process)
    assert re.match(r"page     http://127.0.0.1:\d+/\nbroker ", output)
    assert re.search(r"first projection after [\d.]+ s, by model version \d+", output), output
    assert re.search(r"curl -s http://127.0.0.1:\d+/v1/project .* -d @", output)
    assert len(re.findall(r"coordinates \[(?:-?[\d.]+, ){7}-?[\d.]+\]", output)) == 1
    topic = describe_store(store)["topics"]["readings"]
    assert sum(partition["learned"] for partition in topic["partitions"].values()) == topic["newest_model"] > 10_000
    assert set(topic["partitions"]) == {"0", "1", "2", "3"}
    assert [path.name for path in tmp_path.iterdir()] == ["store"]  # its temporary folder is gone


def test_sigterm_stops_it_cleanly_while_it_starts(tmp_path: Path) -> None:
    with run_demo(folder=tmp_path) as process:
        children = wait_until(lambda: len(found := list_children(process.pid)) > 1 and found, WITHIN_S, "children")
    assert not any(is_running(child) for child in children)
    assert list(tmp_path.iterdir()) == []


def test_streams_a_given_file_also_if_the_broker_drops_records_before_they_are_read(tmp_path: Path) -> None:
    """The broker has room for the records of a second."""
    file, store = tmp_path / "vectors.npy", tmp_path / "store"
    np.save(file, np.random.default_rng(0).standard_normal((500, 2500)).astype(np.float32))
    with run_demo("--file", file, "--store", store, folder=tmp_path) as process:
        output = read_output_until(
            lambda output: bool(re.search(FIRST_OUTPUT, output)) and count_learned(output) > 2000, process
        )
    assert re.search(r"coordinates \[(?:-?[\d.]+, ){7}-?[\d.]+\]", output), output


@pytest.mark.browser
def test_the_page_names_the_sensor_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example in docs/anomalies.md names it, too."""
    if find_browser() is None:
        unavailable("Chromium is needed: `make browser` installs it")
    with run_demo("--sensors", folder=tmp_path) as process, start_chromium() as browser:
        output = read_output_until(lambda output: "first projection" in output, process)
        url, address = re.findall(r"^(?:page|broker) +(\S+)", output, re.MULTILINE)
        assert json.loads(read_first_value(address, "readings")).keys() == {"machine", "at", *MACHINE}
        with check_page_logs(browser.new_page()) as page:
            page.goto(f"{url}?tab=vectors")
            most_unusual = page.locator("#worst tr").first.locator("td").last
            expect(most_unusual).to_have_text(re.compile(r"^vibration \(\+\d+ %\), "), timeout=1000 * WITHIN_S)
            example = re.findall(r"```\n(import httpx\n.*?)```", (DOCS / "anomalies.md").read_text(), re.DOTALL)[0]
            exec(example.replace("http://localhost:8000/", url), {})  # noqa: S102 - our own page
            assert re.match(r"[\d.]+ .*\n0\.0\d+ vibration \(\+1\d\.\d\), ", capsys.readouterr().out)
            page.goto(f"{url}?tab=components")
            page.locator("#components + details summary").click()
            names = page.get_by_role("region", name="Figures of Components").locator("td:first-child")
            expect(names).to_have_text(list(MACHINE))


def read_first_value(address: str, topic: str) -> bytes:
    """Return the value of the first record of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with closing(consumer):
        return consumer.poll(WITHIN_S).value()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_of_named_readings_is_read_as_fit_reads_it(tmp_path: Path, kind: str) -> None:
    """The field chooses among its columns, and a dimension with nearly all of the variance is warned of once."""
    random = np.random.default_rng(0)
    readings = [
        {"pump": "a", "serial": 1e3 * i, "temp": temp, "hum.rel": hum}
        for i, (temp, hum) in enumerate(random.normal(20, 3, (500, 2)).tolist())
    ]
    file, store = tmp_path / f"readings.{kind}", tmp_path / "store"
    if kind == "csv":
        lines = [",".join(readings[0]), *(",".join(map(str, reading.values())) for reading in readings)]
    else:
        lines = [json.dumps(reading) for reading in readings]
    file.write_text("\n".join(lines))
    options = ["--standardize"] if kind == "csv" else []
    with run_demo(
        "--file", file, "--field", "serial,temp,`hum.rel`", "--store", store, *options, folder=tmp_path
    ) as process:
        output = read_output_until(
            lambda output: bool(re.search(FIRST_OUTPUT, output)) and count_learned(output) > 2000, process
        )
    model = Models(open_store(str(store)), "readings").newest()
    assert model.names == ["serial", "temp", "hum.rel"]
    assert (model.model.scale is not None) == bool(options)
    warning = "warning: dimension serial has 100.00% of the total variance"
    assert output.count(warning) == (0 if options else 1)


def test_the_first_rows_of_a_file_decide_format_and_settings(tmp_path: Path) -> None:
    def choose(name: str) -> tuple[dict[str, object], dict[str, object]]:
        stream = choose_stream(tmp_path / name, "", standardize=False, sensors=False)
        return dict(stream.record_settings), dict(stream.model_settings)

    for dtype in ("float32", "float64", "int16"):
        np.save(tmp_path / f"{dtype}.npy", np.ones((3, 9), dtype))
        format_of_numbers = "float32" if dtype == "float32" else "float64"
        model_settings = {"dimensions": 9, "components": 8, "standardize": False}
        assert choose(f"{dtype}.npy") == ({"format": format_of_numbers}, model_settings)
    (tmp_path / "without.csv").write_text("1,2\n3,4\n")
    assert choose("without.csv")[0] == {"format": "float64"}
    (tmp_path / "one.csv").write_text("a.b\n1\n2\n")
    record_settings, model_settings = choose("one.csv")
    assert record_settings == {"format": "json", "field": "`a.b`"}
    assert model_settings == {"dimensions": 1, "components": 1, "standardize": False}
    table = pa.table({"temp": [1.0, 2.0], "hum": [3.0, 4.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert choose("rows.parquet")[0] == {"format": "json", "field": "temp,hum"}


def test_a_bad_first_row_ends_the_demo_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("temp,hum\n1,2\n3,nan\n")
    assert_one_line(run("demo", "--file", file), "row 2: number 2 (hum) is nan", code=1)


def test_options_that_exclude_each_other_are_refused() -> None:
    assert_one_line(run("demo", "--sensors", "--file", "v.npy"), "give either --file or --sensors", code=1)
    for options in (["--field", "temp"], ["--standardize"], ["--sensors", "--standardize"]):
        assert_one_line(run("demo", *options), "--field and --standardize need --file", code=1)


def test_a_store_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "checkpoints" / "readings" / "0").mkdir(parents=True)
    assert_one_line(run("demo", "--store", tmp_path / "store"), "holds checkpoints of an earlier demo", code=2)

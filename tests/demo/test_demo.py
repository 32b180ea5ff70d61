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
import pytest
from playwright.sync_api import expect

from streampca.cli.inspect import describe_store
from streampca.files.synthetic import MACHINE
from tests.command_line import assert_one_line, run
from tests.docs_tables import DOCS
from tests.java_server import unavailable
from tests.page.browser import chromium, installed, watched
from tests.waiting import wait_until

pytest.importorskip("confluent_kafka")

WITHIN_S = 120.0
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("STREAMPCA_")}


@contextmanager
def demo(*arguments: object, folder: Path, ends_by: signal.Signals = signal.SIGTERM) -> Iterator[subprocess.Popen[str]]:
    """A demo, which ends by a signal at the end of the block, without an error."""
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


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


FIRST_OUTPUT = (
    r"first output in topic readings-projected:\n"
    r"  streampca.transform {\"model_version\":\d+,\"partition\":\d,\"offset\":\d+}\n  {\"coordinates\":\["
)


def learned(output: str) -> int:
    """Number of messages of the newest model."""
    numbers = re.findall(r"learned: ([\d,]+)", output) or ["0"]
    return int(numbers[-1].replace(",", ""))


def has_shown_all(output: str) -> bool:
    """Return whether the model has improved, and transform has written an output."""
    shares = [float(share) for share in re.findall(r"subspace found: ([\d.]+)%", output)]
    improves = len(shares) >= 3 and shares[-1] > max(shares[0], 95)
    return improves and learned(output) > 10_000 and bool(re.search(FIRST_OUTPUT, output))


def output_until(condition: Callable[[str], bool], process: subprocess.Popen[str]) -> str:
    """The demo's output when the condition holds; it prints a line every two seconds."""
    output, deadline = "", time.monotonic() + WITHIN_S
    for line in process.stdout:
        output += line
        if condition(output):
            return output
        assert time.monotonic() < deadline, output
    raise AssertionError(f"the demo ended: {output}\n{process.stderr.read()}")


def test_finds_the_subspace_and_projects_until_it_is_stopped(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with demo("--store", store, folder=tmp_path, ends_by=signal.SIGINT) as process:
        output = output_until(has_shown_all, process)
    assert re.match(r"page     http://127.0.0.1:\d+/\nbroker ", output)
    assert re.search(r"first projection after [\d.]+ s, by model version \d+", output), output
    assert re.search(r"curl -s http://127.0.0.1:\d+/v1/project .* -d @", output)
    assert len(re.findall(r"coordinates \[(?:-?[\d.]+, ){7}-?[\d.]+\]", output)) == 1
    topic = describe_store(store)["topics"]["readings"]
    assert sum(partition["learned"] for partition in topic["partitions"].values()) == topic["newest_model"] > 10_000
    assert set(topic["partitions"]) == {"0", "1", "2", "3"}
    assert [path.name for path in tmp_path.iterdir()] == ["store"]  # its temporary folder is gone


def test_sigterm_stops_it_cleanly_while_it_starts(tmp_path: Path) -> None:
    with demo(folder=tmp_path) as process:
        children = wait_until(lambda: len(found := children_of(process.pid)) > 1 and found, WITHIN_S, "children")
    assert not any(is_running(child) for child in children)
    assert list(tmp_path.iterdir()) == []


def test_streams_a_given_file_also_if_the_broker_drops_records_before_they_are_read(tmp_path: Path) -> None:
    """It has room for a second of these."""
    file, store = tmp_path / "vectors.npy", tmp_path / "store"
    np.save(file, np.random.default_rng(0).standard_normal((500, 2500)).astype(np.float32))
    with demo("--file", file, "--store", store, folder=tmp_path) as process:
        output = output_until(lambda output: bool(re.search(FIRST_OUTPUT, output)) and learned(output) > 2000, process)
    assert re.search(r"coordinates \[(?:-?[\d.]+, ){7}-?[\d.]+\]", output), output


@pytest.mark.browser
def test_the_page_names_the_sensor_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And so does the example in docs/anomalies.md."""
    if installed() is None:
        unavailable("Chromium is needed: `make browser` installs it")
    with demo("--sensors", folder=tmp_path) as process, chromium() as browser:
        output = output_until(lambda output: "first projection" in output, process)
        url, address = re.findall(r"^(?:page|broker) +(\S+)", output, re.MULTILINE)
        assert json.loads(first_value(address, "readings")).keys() == {"machine", "at", *MACHINE}
        with watched(browser.new_page()) as page:
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


def first_value(address: str, topic: str) -> bytes:
    """The value of the first record of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "test"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with closing(consumer):
        return consumer.poll(WITHIN_S).value()


def test_sensors_exclude_a_file() -> None:
    assert_one_line(run("demo", "--sensors", "--file", "v.npy"), "give either --file or --sensors", code=1)


def test_a_store_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "checkpoints" / "readings" / "0").mkdir(parents=True)
    assert_one_line(run("demo", "--store", tmp_path / "store"), "holds checkpoints of an earlier demo", code=2)

"""The demo, run as a new user would: with real processes, and cleaned up at the end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from streampca.cli.inspect import facts_of_store
from tests.command_line import assert_one_line, run
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
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(child) for child in pids.split()]


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
    topic = facts_of_store(store)["topics"]["readings"]
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


def test_a_store_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "store" / "checkpoints" / "readings" / "0"
    old.mkdir(parents=True)
    assert_one_line(run("demo", "--store", tmp_path / "store"), "holds checkpoints of an earlier demo", code=2)

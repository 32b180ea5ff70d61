"""A sidecar that loses a thread for good ends with that thread's error, as a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sidecar.known import TOPIC

# A sidecar with a failure injected into the thread that is named, while it serves.
PROGRAM = """
import sys, threading
from streampca.cli import app as cli
from streampca.stores.model_cache import ModelCache

def fail(*_):
    raise RuntimeError("injected into " + threading.current_thread().name)

def start(cache, interval_s):
    if name == "model-poller":
        cache._poll_forever = fail
    else:
        threading.Thread(target=fail, name=name).start()
    really_start(cache, interval_s)

name, store, topic = sys.argv[1:]
really_start, ModelCache.start = ModelCache.start, start
sys.argv[1:] = ["serve", "--topic", topic, "--store", store, "--port", "0"]
cli.main()
"""


@pytest.mark.slow  # whole processes
@pytest.mark.parametrize("name", ["model-poller", "another"])
def test_the_death_of_a_thread_ends_the_sidecar(tmp_path: Path, name: str) -> None:
    arguments = [sys.executable, "-c", PROGRAM, name, str(tmp_path), TOPIC]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f"RuntimeError: injected into {name}" in ended.stderr.strip().splitlines()[-1]

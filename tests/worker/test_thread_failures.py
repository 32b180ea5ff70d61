"""A worker that loses one of its threads ends with that thread's error, as a process: nothing is served half."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # whole processes

ENVIRONMENT = os.environ | {"STREAMPCA_CHECKPOINT_INTERVAL_S": "0.1"}

# A worker on a source in memory, with a failure injected into the thread that is named.
PROGRAM = """
import json, sys, threading
from streampca.cli import app as cli
from streampca.cli import worker as command
from streampca.sources.base import NoDeadLetters
from streampca.sources.memory import MemorySource, MemoryTopic
from streampca.sources.prefetch import Prefetch
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.consumer_group import health
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher

def fail(*_):
    raise RuntimeError("injected into " + threading.current_thread().name)

class Source(MemorySource):
    def seek(self, positions, last=None):
        super().seek(positions, last)
        if name == "prefetch":
            self.status = fail
        elif name == "health":
            health.HealthServer.service_actions = fail
        elif name == "client":
            threading.Thread(target=fail, name="client", daemon=True).start()
        elif name == "writer":
            Checkpoints.save = fail

def build(settings, process):
    store, listener, check_threads, _ = process
    config = command.worker_config_of(settings)
    topic = MemoryTopic(1, settings.topic)
    topic.append(0, *[b"[1, 2]"] * 50)
    checkpoints = Checkpoints(store, settings.topic)
    publisher = Publisher(checkpoints, Models(store, settings.topic), config.fold, lambda: 0.0)
    source = Prefetch(Source(topic), 100, 10**6, config.codec.vectors_of)
    return Worker(config, source, NoDeadLetters(), CheckpointWriter(checkpoints, publisher), listener, check_threads)

name, store = sys.argv[1:]
command._build = build
sys.argv[1:] = ["worker", "--topic", "readings", "--dimensions", "2", "--components", "1", "--store", store]
cli.main()
"""


@pytest.mark.parametrize("name", ["prefetch", "health", "client", "writer"])
def test_the_death_of_a_thread_ends_the_worker(tmp_path: Path, name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(tmp_path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert f"RuntimeError: injected into {name}" in ended.stderr.strip().splitlines()[-1]

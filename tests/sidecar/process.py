"""The sidecar as a process, on a free port of the loopback interface."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from streampca.fold.model_file import PublishedModel
from tests.example_models import TOPIC, models_in
from tests.forked import ForkedProcess

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("error")
from streampca.process import logs
from streampca.sidecar import app, server
from streampca.errors import StreampcaError
from streampca.settings.commands import ServeSettings
from streampca.stores.choice import open_store
logs.configure("info")
app.POLL_INTERVAL_S = 0.02
settings = ServeSettings(**json.loads(sys.argv[1]))
try:
    server.run(settings, open_store(settings.store))
except StreampcaError as error:
    sys.exit(f"streampca: {error}")
"""
START_TIMEOUT_S = 60.0


def connect(url: str) -> socket.socket:
    """Connect to a server. The buffer of the connection is small, so most of an unread answer stays in the server."""
    address = urlsplit(url)
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.settimeout(60)
    try:
        connected.connect((address.hostname, address.port))
    except OSError:
        connected.close()
        raise
    return connected


def count_reached(url: str, limit: str) -> float:
    """Return how many requests have reached a limit, by the metrics of a sidecar."""
    name = f'streampca_limits_reached_total{{limit="{limit}",topic="{TOPIC}"}} '
    return float(httpx.get(f"{url}/metrics", timeout=60).text.partition(name)[2].split()[0])


class SidecarProcess:
    """A sidecar that starts on entry, accepts requests once `wait_for_url` returns, and is killed on exit if it runs.

    It runs the lines `first` of Python before anything else. It is forked from a process that has imported everything,
    unless its memory is measured.
    """

    process: ForkedProcess | subprocess.Popen[bytes]

    def __init__(self, store: Path | str, *, first: str = "", forked: bool = True, **settings: Any) -> None:
        self._settings = {"topic": TOPIC, "store": str(store), "port": 0} | settings
        self._program = f"{first}\n{PROGRAM}"
        self._forked = forked
        self._read = 0  # bytes of the log that were read

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        arguments = [json.dumps(self._settings)]
        if self._forked:
            self.process = ForkedProcess(arguments, os.environ, self._log.with_name("out"), self._log, self._program)
        else:
            with self._log.open("wb") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, "-W", "error", "-c", self._program, *arguments], stderr=errors
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def read_lines(self) -> Iterator[str]:
        """Yield the next lines of the log as they are written, until the process ends."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            text = self._log.read_text(errors="replace")
            end = text.find("\n", self._read)
            while end >= 0:
                line = text[self._read : end]
                self._read = end + 1
                yield line
                end = text.find("\n", self._read)
            if has_ended:
                return
            time.sleep(0.01)
        raise AssertionError(f"no line within {START_TIMEOUT_S} s")

    def wait_for_url(self) -> str:
        """Return the URL of the sidecar, once its log names it."""
        for line in self.read_lines():
            if line.startswith("{") and json.loads(line)["event"] == "serving":
                return str(json.loads(line)["url"])
        raise AssertionError(f"the sidecar ended with {self.process.wait()} before it served")

    def stop(self, within_s: float, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, and return the exit code and the rest of the log."""
        self.process.send_signal(number)
        return self.wait_for_exit(within_s)

    def wait_for_exit(self, within_s: float) -> tuple[int, str]:
        """Return the exit code and the rest of the log."""
        code = self.process.wait(within_s)
        return code, self._log.read_text(errors="replace")[self._read :]


@contextmanager
def serve_models(folder: Path, *published: PublishedModel, **options: Any) -> Iterator[SidecarProcess]:
    """Run a sidecar on a store with these models until the end of the block."""
    models = models_in(folder)
    for model in published:
        models.save(model)
    with SidecarProcess(folder, **options) as process:
        yield process

"""A real worker process and its log."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.forked import COMMAND_LINE, ForkedProcess
from tests.waiting import PATIENCE_S


class WorkerProcess:
    """A process of `streampca worker` that logs to a file; forked from one that has imported everything, or not."""

    def __init__(
        self, environment: dict[str, str], log: Path, forked: bool = True, program: str = COMMAND_LINE
    ) -> None:
        self.log, self.end_expected = log, False
        self._parsed, self._events = 0, list[dict[str, Any]]()
        start = partial(ForkedProcess, program=program) if forked else own_interpreter
        client = {"STREAMPCA_KAFKA_CLIENT": "kafka-python"}
        self.process = start(["worker"], {**os.environ, **client, **environment}, log)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code. The process must end in half the time that helm gives it."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        self.end_expected = True
        self.process.send_signal(number)
        return self.process.wait(30)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for a worker that should end by itself; return its exit code."""
        self.end_expected = True
        return self.process.wait(timeout_s)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """The log's events so far, without an incomplete last line. Each is parsed once: a condition often asks."""
        with self.log.open("rb") as log:
            log.seek(self._parsed)
            complete, newline, _ = log.read().rpartition(b"\n")
        self._parsed += len(complete + newline)
        self._events += [json.loads(line) for line in complete.split(b"\n") if line.startswith(b"{")]
        return self._events

    def count(self, event: str) -> int:
        return sum(e["event"] == event for e in self.events())

    def assert_alive_or_end_expected(self) -> None:
        if not self.end_expected and self.process.poll() is not None:
            raise AssertionError(f"a worker ended unexpectedly ({self.process.returncode}):\n{self.text()[-3000:]}")


def own_interpreter(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """`python -m streampca`, as a user starts it."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "streampca", *arguments],
            env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

"""Child processes of the demo, each logging to a file."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from streampca.errors import StreampcaError
from streampca.settings.base import PREFIX

_PORTS = range(10_000, 20_000)  # systems give others to connections, which might take one before a process listens

# kafka-python cannot negotiate a version with librdkafka's mock cluster, which speaks this one.
_PROGRAM = """
from streampca.cli.app import main
from streampca.sources.kafka_python import connection
connection.api_version = (2, 1)
main()
"""


class ChildProcess(subprocess.Popen[bytes]):
    """A `streampca` command with its settings as environment variables; the parent's settings are not inherited."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, object], log: Path) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        variables = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
        self.command, self.log = command[0], log
        with log.open("wb") as output:
            super().__init__(
                [sys.executable, "-c", _PROGRAM, *command],
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must reach only the demo, which stops its children in order
            )

    def verify(self) -> None:
        """Raise `StreampcaError` with the last line of its log if it has exited."""
        if (code := self.poll()) is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            cause = _error_in(lines[-1]) if lines else "it logged nothing"
            raise StreampcaError(f"{self.command} exited with code {code}: {cause}")


def _error_in(line: str) -> str:
    """The error that a line of a log in JSON reports, or the line."""
    try:
        return str(json.loads(line)["error"])
    except (ValueError, TypeError, KeyError):
        return line.removeprefix("streampca: ")


def free_port(preferred: int) -> int:
    """`preferred` if it is free and not 0, otherwise one of `_PORTS` that is."""
    for port in (*([preferred] if preferred else []), *random.sample(_PORTS, 20)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as server:
            return int(server.getsockname()[1])
    raise StreampcaError("no free port on 127.0.0.1")


def stop(children: list[ChildProcess]) -> None:
    """Terminate all, then wait for each; kill those that do not end in time."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + 10.0
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

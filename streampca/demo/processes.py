"""The real worker and the real sidecar, each a process of its own with its log in a file."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from streampca.errors import StreampcaError
from streampca.settings.layers import PREFIX


class ChildProcess:
    """One `streampca` command with its settings in the environment. The settings of this environment don't reach it."""

    def __init__(self, command: str, settings: Mapping[str, object], log: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        given = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
        self.command, self.log = command, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "streampca", command],
                env={**own, **given},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C reaches us only, and we end the children in order
            )

    def verify(self) -> None:
        """Raise `StreampcaError` with its last words when it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise StreampcaError(f"the {self.command} ended with exit code {code}: {self._last_words()}")

    def terminate(self) -> None:
        """SIGTERM."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 10.0) -> int:
        """The exit code; a child that does not end in time is killed."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].removeprefix("streampca: ") if lines else "it said nothing"


def free_port(wanted: int) -> int:
    """`wanted` when nobody listens there, else any port that is free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise StreampcaError("there is no free port on 127.0.0.1")


def stop(children: list[ChildProcess]) -> None:
    """Ask each to end, then wait for each."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + 10.0
    for child in children:
        child.wait(max(deadline - time.monotonic(), 0.1))

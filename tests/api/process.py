"""The sidecar as a process, on a free port of the loopback interface."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.api.known import TOPIC

PROGRAM = """
import json, sys
from streampca import logs
from streampca.api.server import run
from streampca.errors import StreampcaError
from streampca.settings import ServeSettings
from streampca.stores.choice import store_of
logs.configure("info", "json")
settings = ServeSettings(**json.loads(sys.argv[1]))
try:
    run(settings, store_of(settings.store))
except StreampcaError as error:
    sys.exit(f"streampca: {error}")
"""


class SidecarProcess:
    """Starts on entry, accepts requests once `url` returns, is killed on exit if it still runs."""

    def __init__(self, store: Path | str, **settings: Any) -> None:
        self._settings = {"topic": TOPIC, "store": str(store), "port": 0, "reload_interval_s": 0.02} | settings

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(self._settings)],
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def url(self) -> str:
        """Its URL, from its log."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{") and json.loads(line)["event"] == "serving":
                return str(json.loads(line)["url"])
        raise AssertionError(f"the sidecar ended with {self.process.wait()} before it served")

    def end(self, within_s: float, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code, and the rest of its log, after a signal."""
        self.process.send_signal(number)
        return self.ended(within_s)

    def ended(self, within_s: float) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=within_s)
        return self.process.returncode, errors

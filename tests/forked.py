"""Starts programs by forking a process that has imported everything already.

Importing and loading the kernels takes most of a start: nearly two seconds of processor time. The processes are as real
as others: each has its own environment, session and output, and can be killed.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.preloaded"])

COMMAND_LINE = "from streampca.cli.app import main; main()"


class ForkedProcess:
    """`python -c program arguments…` with this environment, by default `streampca`. As `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: Path,
        errors: Path | None = None,
        program: str = COMMAND_LINE,
    ) -> None:
        """What it prints goes to `output`, its stderr to `errors` if given."""
        for path in (output, errors or output):
            path.write_bytes(b"")
        arguments = ["streampca", *arguments]
        given = (program, arguments, dict(environment), output, errors or output)
        self._process = _context.Process(target=_run, args=given, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid  # type: ignore[assignment]  # it has started

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code if the process has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises `TimeoutError`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and the server of forks has reaped it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


def _run(program: str, arguments: list[str], environment: Mapping[str, str], output: Path, errors: Path) -> None:
    """What the forked process does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for descriptor, path in ((1, output), (2, errors)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    exec(program, {"__name__": "__main__"})  # noqa: S102 - of the tests

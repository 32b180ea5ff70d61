"""Starts our commands by forking a process that has imported everything already.

Importing and loading the kernels takes most of a worker's start: nearly two seconds of processor time. The processes
are as real as others: each has its own environment, session and log, and can be killed.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.preloaded"])


class ForkedProcess:
    """`streampca` with these arguments and this environment; its output goes to a file. As `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        output.write_bytes(b"")
        self._process = _context.Process(target=_run, args=(arguments, dict(environment), output), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code if the process has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """The exit code. Raises `TimeoutError`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return self._process.exitcode


def _run(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
    """What the forked process does."""
    from streampca.cli import main  # imported by then

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["streampca", *arguments]
    main()

"""One S3 server for all test processes, because a start takes six seconds of processor time.

The first process that needs it starts it; the last one that leaves kills it. Each holds a shared lock of a file
meanwhile, which the kernel releases even if the process crashes.
"""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.s3_process import S3Process


@contextmanager
def shared_s3(folder: Path) -> Iterator[S3Process]:
    """The running server of all processes that name this folder. Raises `BrokerUnavailableError`."""
    folder.mkdir(exist_ok=True)
    state = folder / "state.json"
    with (folder / "users.lock").open("w") as users, (folder / "start.lock").open("w") as start:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_EX)
        if state.exists():
            running = json.loads(state.read_text())
            server = S3Process(folder, running["port"])
        else:
            server = S3Process(folder)
            server.start()
            running = {"port": server.port, "pid": server.pid}
            state.write_text(json.dumps(running))
        fcntl.flock(start, fcntl.LOCK_UN)
        try:
            yield server
        finally:
            with suppress(BlockingIOError):  # others use it; whether or not, our shared lock is released
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if state.exists():  # or another process left at the same time, and was the last
                    state.unlink()
                    os.kill(running["pid"], signal.SIGKILL)
            server.leave()

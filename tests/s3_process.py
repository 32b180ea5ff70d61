"""An S3 server for tests over real HTTP: Adobe's S3Mock, started in some four seconds."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.java_server import JavaServer, downloaded
from tests.ports import free_ports

VERSION = "4.11.0"
ARTIFACT = f"-Dartifact=com.adobe.testing:s3mock:{VERSION}:jar:exec"
BUCKET = "bucket"


class S3Process(JavaServer):
    """One server process with an empty bucket; it forgets everything when it stops."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        """With a port, it is one that another process has started."""
        super().__init__(folder / "s3.log")
        self._program = downloaded("s3", f"s3mock-{VERSION}-exec.jar", "dependency:copy", ARTIFACT)
        self.port = free_ports(1)[0] if port is None else port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """The variables that lead a client here, or to a proxy at `endpoint`."""
        return {
            "AWS_ACCESS_KEY_ID": "a-key-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret-key",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def _arguments(self) -> list[str]:
        mock = "--com.adobe.testing.s3mock"
        return [
            "-Xmx192m", "-XX:+UseSerialGC", "-jar", str(self._program),
            f"{mock}.http-port={self.port}", "--server.port=0", "--server.address=127.0.0.1",
            f"{mock}.store.root={self.log.parent / 'objects'}", f"{mock}.store.initial-buckets={BUCKET}",
            "--logging.level.root=WARN",
        ]  # fmt: skip

    def _probe(self) -> str:
        return f"{self.endpoint}/{BUCKET}?list-type=2"


@contextmanager
def shared_s3(folder: Path) -> Iterator[S3Process]:
    """One server for all test processes that name this folder: a start takes six seconds of processor time.

    The first process that needs it starts it; the last one that leaves kills it. Each holds a shared lock of a file
    meanwhile, which the kernel releases even if the process crashes. Raises `ServerUnavailableError`.
    """
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
            running = {"port": server.port, "pid": server.process.pid}
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

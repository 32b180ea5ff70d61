"""An S3 server for tests over real HTTP: Adobe's S3Mock, started in some four seconds."""

from pathlib import Path

from tests.java_server import JavaServer, downloaded
from tests.ports import free_ports

VERSION = "4.11.0"
ARTIFACT = f"-Dartifact=com.adobe.testing:s3mock:{VERSION}:jar:exec"
BUCKET = "bucket"


class S3Process(JavaServer):
    """One server process with an empty bucket; it forgets everything when it stops."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "s3.log")
        self._program = downloaded("s3", f"s3mock-{VERSION}-exec.jar", "dependency:copy", ARTIFACT)
        (self.port,) = free_ports(1)

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

"""The compose file's S3 server, run without its image: its variables have their effect."""

from pathlib import Path

import pytest

from streampca.stores.choice import open_store
from tests.deploy import files
from tests.java_server import available
from tests.s3_process import S3Process

SERVICE = files.services()["objects"]


class ComposedServer(S3Process):
    """Configured by environment variables alone, but for the ports."""

    def _arguments(self) -> list[str]:
        ports = [f"--com.adobe.testing.s3mock.http-port={self.port}", "--server.port=0", "--server.address=127.0.0.1"]
        return ["-XX:+UseSerialGC", "-jar", str(self._program), *ports]

    def _probe(self) -> str:
        url: str = SERVICE["healthcheck"]["test"][-1]
        return url.replace("9090", str(self.port))


@pytest.mark.broker
@pytest.mark.slow
def test_workers_can_use_it_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICE["environment"].items():
        monkeypatch.setenv(name, str(value).replace("/s3mockroot", str(tmp_path / "objects")))
    with available(lambda: ComposedServer(tmp_path), "S3 server") as server:
        for name, value in files.services()["worker"]["environment"].items():
            if name.startswith("AWS_"):
                monkeypatch.setenv(name, value.replace("http://objects:9090", server.endpoint))
        bucket = SERVICE["environment"]["COM_ADOBE_TESTING_S3MOCK_STORE_INITIALBUCKETS"]
        store = open_store(f"s3://{bucket}")
        store.write("topic/model", b"bytes")
        assert store.read("topic/model") == b"bytes"
    assert any(path.read_bytes() == b"bytes" for path in (tmp_path / "objects").rglob("*") if path.is_file())

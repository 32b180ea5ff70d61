"""Headers against sniffing, framing and foreign scripts, and the hosts that a sidecar answers."""

import pytest

from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.stores.memory import MemoryStore
from tests.sidecar.http_client import Client
from tests.sidecar.known import TOPIC

ANY_ADDRESS = "0.0.0.0"  # noqa: S104
PATHS = [
    "/",
    "/page/main.js",
    "/docs",
    "/openapi.json",
    "/v1/models",
    "/v1/project",
    "/nowhere",
    "/metrics",
    "/healthz",
]


@pytest.mark.parametrize("path", PATHS)
def test_security_headers_are_on_every_response(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    policies = headers.get_list("content-security-policy")
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policies[0]
    assert ("unsafe-inline" in policies[0]) == (path == "/docs")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("attacker.example", 400),
        ("attacker.example:8000", 400),
        ("127.0.0.1.attacker.example", 400),
        ("", 400),
        ("[", 400),
    ],
)
def test_on_a_loopback_address_only_local_hosts_are_answered(client: Client, host: str, status: int) -> None:
    for path in ("/healthz", "/v1/models", "/"):
        assert client.get(path, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("listens_on", "setting", "host", "status"),
    [
        (ANY_ADDRESS, None, "any.example", 200),
        ("::", None, "any.example", 200),
        ("10.1.2.3", None, "any.example", 200),
        ("sidecar.example", None, "any.example", 200),
        ("127.0.0.2", None, "127.0.0.2:80", 200),
        ("127.0.0.2", None, "127.0.0.3", 400),
        ("localhost", None, "any.example", 400),
        ("::1", None, "any.example", 400),
        ("127.0.0.1", "*", "any.example", 200),
        (ANY_ADDRESS, "PCA.example, localhost", "pca.example:443", 200),
        (ANY_ADDRESS, "PCA.example, localhost", "other.example", 400),
        (ANY_ADDRESS, "*.example", "pca.example", 200),
    ],
)
def test_allowed_hosts(store: MemoryStore, listens_on: str, setting: str | None, host: str, status: int) -> None:
    with Client(create_app(store, ServeSettings(topic=TOPIC, host=listens_on, allowed_hosts=setting))) as client:
        assert client.get("/healthz", headers={"Host": host}).status_code == status

"""Headers against sniffing, framing and foreign scripts, and the hosts that a sidecar answers."""

import pytest

from streampca.api.app import create_app
from streampca.api.hosts import allowed_hosts
from streampca.settings import ServeSettings
from streampca.stores.memory import MemoryStore
from tests.api.client import Client
from tests.api.known import TOPIC
from tests.api.test_errors import error_of

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
        ("attacker.example", 421),
        ("attacker.example:8000", 421),
        ("127.0.0.1.attacker.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_on_a_loopback_address_only_local_hosts_are_answered(client: Client, host: str, status: int) -> None:
    for path in ("/healthz", "/v1/models", "/"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == status
        if status == 421:
            assert "is not allowed here: set STREAMPCA_ALLOWED_HOSTS" in error_of(answer, 421)


@pytest.mark.parametrize(
    ("host", "setting", "allowed"),
    [
        (ANY_ADDRESS, None, None),
        ("::", None, None),
        ("10.1.2.3", None, None),
        ("sidecar.example", None, None),
        ("127.0.0.2", None, {"localhost", "127.0.0.1", "[::1]", "127.0.0.2"}),
        ("::1", None, {"localhost", "127.0.0.1", "[::1]"}),
        ("127.0.0.1", "*", None),
        (ANY_ADDRESS, "PCA.example, localhost", {"pca.example", "localhost"}),
    ],
)
def test_allowed_hosts(host: str, setting: str | None, allowed: set[str] | None) -> None:
    assert allowed_hosts(ServeSettings(topic=TOPIC, host=host, allowed_hosts=setting)) == allowed


def test_other_hosts_can_be_allowed(store: MemoryStore) -> None:
    with Client(create_app(store, ServeSettings(topic=TOPIC, allowed_hosts="pca.example"))) as client:
        assert client.get("/healthz", headers={"Host": "pca.example:443"}).status_code == 200
        assert client.get("/healthz", headers={"Host": "localhost"}).status_code == 421

"""Every answer has an id and headers against sniffing, framing and foreign scripts; which hosts are answered."""

from itertools import product

import httpx
import pytest
import structlog
from fastapi import FastAPI
from starlette.routing import Route
from structlog.testing import capture_logs

from streampca.settings.process import is_loopback
from streampca.sidecar.errors import Problem
from streampca.sidecar.middleware import PROBES
from tests.example_models import D
from tests.sidecar.http_client import Client, create_client, read_error

ANY_ADDRESS = "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/docs", "/v1/project", "/nowhere", "/metrics"])
def test_security_headers_are_on_every_response(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    (policy,) = headers.get_list("content-security-policy")
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("listens_on", "setting", "allowed", "refused"),
    [
        *((host, None, ["any.example"], []) for host in (ANY_ADDRESS, "::", "10.1.2.3", "sidecar.example")),
        (
            "127.0.0.1", None, ["LOCALHOST:8000", "[::1]:8000", "[::1]"],
            ["attacker.example:8000", "127.0.0.1.attacker.example", "", "["],
        ),
        ("127.0.0.2", None, ["127.0.0.2:80"], ["127.0.0.3"]),
        *((host, None, [], ["any.example"]) for host in ("localhost", "::1")),
        ("127.0.0.1", "*", ["any.example"], []),
        (ANY_ADDRESS, "PCA.example, localhost", ["pca.example:443"], ["other.example"]),
        (ANY_ADDRESS, "*.example", ["pca.example"], []),
    ],
)  # fmt: skip
def test_allowed_hosts(listens_on: str, setting: str | None, allowed: list[str], refused: list[str]) -> None:
    with create_client(host=listens_on, allowed_hosts=setting) as client:
        for path, host in product(("/docs", "/v1/page/workers", "/", *PROBES, "/metrics"), allowed + refused):
            is_open = path in PROBES or (path == "/metrics" and not is_loopback(listens_on))
            status = client.get(path, headers={"Host": host}).status_code
            assert (status == 400) == (host in refused and not is_open), (path, host)


def test_pages_of_other_sites_may_request_only_probes_and_pages(app: FastAPI, client: Client) -> None:
    paths = {route.path for route in app.routes if isinstance(route, Route)} | {"/nowhere", "/page/main.js"}
    assert len(paths) > 30
    for path, site in product(paths, ("same-origin", "none", "cross-site")):
        answer = client.get(path, headers={"Sec-Fetch-Site": site})
        is_open = path in {"/", "/docs", *PROBES} or path.startswith("/page/")
        assert (answer.status_code == 403) == (site == "cross-site" and not is_open), path
    refused = client.post("/v1/project", content=b"", headers={"Sec-Fetch-Site": "cross-site"})
    assert "let its own server do it" in read_error(refused, Problem.CROSS_SITE)


@pytest.mark.parametrize("path", ["/v1/model", "/nothing", "/healthz", "/v1/model?version=11"])
def test_every_answer_has_an_id(client: Client, path: str) -> None:
    ids = [client.request(method, path).headers["x-request-id"] for method in ("GET", "HEAD", "DELETE")]
    assert len({*ids}) == 3
    for other in ("a b", "x" * 129, "ä".encode()):
        assert client.get(path, headers={"X-Request-Id": other}).headers["x-request-id"] != other


def test_what_a_request_logs_has_its_id(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def versions() -> list[int]:
        structlog.get_logger().warning("asked")
        return []

    monkeypatch.setattr(app.state.model_cache, "versions", versions)
    with capture_logs([structlog.contextvars.merge_contextvars]) as logged, Client(app) as client:
        for request_id in ("mine-8", "mine-9"):
            client.get("/v1/models", headers={"X-Request-Id": request_id})
    assert [event["request_id"] for event in logged if event["event"] == "asked"] == ["mine-8", "mine-9"]


@pytest.mark.parametrize(
    ("path", "accept", "is_packed"),
    [
        ("/v1/project", "application/json", True),
        ("/v1/project", "application/x-npz", False),
        ("/", "*/*", True),
        ("/page/main.js", "*/*", True),
        ("/metrics", "*/*", True),
        ("/openapi.json", "*/*", True),
        ("/healthz", "*/*", False),
    ],
)
def test_long_texts_are_gzipped_where_that_is_accepted(client: Client, path: str, accept: str, is_packed: bool) -> None:
    def answer(encoding: str) -> httpx.Response:
        headers = {"Accept": accept, "Accept-Encoding": encoding}
        if path == "/v1/project":
            return client.post(path, json={"vectors": [[1.0 / 3] * D] * 50}, headers=headers)
        return client.get(path, headers=headers)

    plain, packed = answer("identity"), answer("gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers.get("content-encoding") == ("gzip" if is_packed else None)
    if path != "/metrics":
        assert plain.content == packed.content
    if is_packed:
        assert int(packed.headers["content-length"]) < len(plain.content) / 2
        assert "Accept-Encoding" in packed.headers["vary"]

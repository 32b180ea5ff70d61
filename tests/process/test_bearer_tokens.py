"""Bearer tokens: scopes, a file that changes, and what stays open."""

import hashlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route
from structlog.typing import EventDict

from streampca.errors import SettingsError
from streampca.process.bearer_tokens import BearerTokens, UnknownTokenError
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from tests.errors import refusal
from tests.example_models import TOPIC, D
from tests.sidecar.conftest import models as models
from tests.sidecar.http_client import Client, read_error
from tests.waiting import Clock

VECTORS = {"vectors": [[1.0] * D]}
OPEN = (
    "/", "/page/main.js", "/docs", "/openapi.json", "/healthz", "/readyz", "/ping", "/version", "/v2",
    "/v2/health/live", "/v2/health/ready",
)  # fmt: skip
FILES = ("/page/", "/docs/")
READ = (
    "/v1/model", "/v1/models", "/v1/model/components", "/v1/page/history", "/v1/page/recent", "/v1/page/workers",
    f"/v1/page/model?topic={TOPIC}&version=20", "/nowhere",
)  # fmt: skip


def token_line(scopes: str, token: str) -> str:
    return f"{scopes} {hashlib.sha256(token.encode()).hexdigest()}\n"


def rewrite(path: Path, text: str) -> None:
    """Write the file with another modification time, even if the clock of the file system has not ticked."""
    path.write_text(text)
    os.utime(path, (time.time() + 5, time.time() + 5))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(
        "# who: Ada\n\n"
        + token_line("read", "ada")
        + token_line("metrics", "scraper")
        + token_line("read,metrics", "both")
    )
    return path


@pytest.fixture
def client(store: MemoryStore, models: Models, path: Path) -> Iterator[Client]:
    with Client(create_app(store, ServeSettings(topic=TOPIC, tokens_file=path))) as client:
        yield client


def test_each_token_reaches_what_its_scopes_say(client: Client) -> None:
    for get in READ:
        assert read_error(client.get(get), 401) == "this needs a token: send Authorization: Bearer TOKEN"
        assert read_error(client.get(get, headers=bearer("scraper")), 403).endswith("it lacks the scope read")
        assert client.get(get, headers=bearer("ada")).status_code in (200, 404)
    for token, status, challenge in (
        ({}, 401, "Bearer"),
        (bearer("eve"), 401, 'Bearer error="invalid_token"'),
        (bearer("ada"), 403, 'Bearer error="insufficient_scope"'),
    ):
        answer = client.get("/metrics", headers=token)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (status, challenge)
    assert read_error(client.get("/metrics", headers=bearer("ada")), 403).endswith("it lacks the scope metrics")
    assert client.get("/metrics", headers=bearer("both")).status_code == 200
    assert client.post("/v1/project", json=VECTORS).status_code == 401
    assert client.post("/v1/project", json=VECTORS, headers=bearer("both")).status_code == 200
    assert client.post(f"/v2/models/{TOPIC}/infer", json={}).status_code == 401
    for header in ("Basic ada", "ada", "Bearer", "bearer  ", "Bearer \xff"):
        assert client.get("/v1/model", headers={"Authorization": header.encode("latin-1")}).status_code == 401
    assert client.get("/v1/model", headers={"Authorization": "bearer ada"}).status_code == 200


def test_every_spelling_of_a_path_needs_a_token(store: MemoryStore, models: Models, path: Path) -> None:
    """Routes match before a newline, too, and other servers take other spellings for the same path."""
    app = create_app(store, ServeSettings(topic=TOPIC, tokens_file=path))
    routes = [route.path for route in app.routes if isinstance(route, Route)]
    paths = {re.sub(r"\{[^}]*\}", "1", route) for route in routes} | {"/page/main.js"}
    assert {"/v1/page/recent", "/v1/models/1", "/metrics", "/invocations"} <= paths
    with Client(app) as client:
        for spelled in paths:
            spellings = {spelled, spelled.upper(), f"/{spelled}", f"/page/%2e%2e{spelled}"}
            spellings |= {f"{spelled}{end}" for end in ("%0A", "/", "%0A/", "%00", "%0D", "%20")}
            for spelling, method in itertools.product(spellings - set(OPEN), ("GET", "HEAD", "POST")):
                status = client.request(method, f"http://localhost{spelling}").status_code
                is_open = spelled.startswith(FILES) or (spelling.startswith(FILES) and status in (404, 405))
                assert status == 401 or is_open, (method, spelling, status)
        assert client.get("/metrics%0A", headers=bearer("ada")).status_code == 403


def test_probes_and_the_page_need_no_token(client: Client) -> None:
    for get in OPEN:
        assert client.get(get).status_code == 200, get
    assert client.get("/openapi.json").json()["components"]["securitySchemes"] == {
        "HTTPBearer": {"type": "http", "scheme": "bearer"}
    }


def test_without_a_token_a_probe_names_only_the_kind_of_failure(path: Path) -> None:
    probes = ("/readyz", "/ping", "/v2/health/ready")
    with Client(create_app(MemoryStore(), ServeSettings(topic=TOPIC, tokens_file=path))) as client:
        for probe, token in itertools.product(probes, ({}, bearer("eve"), bearer("scraper"))):
            expected = "no model has been published yet in" if token == bearer("scraper") else "no model"
            error = read_error(client.get(probe, headers=token), 503)
            assert error.removeprefix("not ready: ").startswith(expected)
            assert ("published" in error) == (token == bearer("scraper"))


def test_a_changed_file_is_read_again(path: Path) -> None:
    tokens = BearerTokens(path, clock := Clock())
    tokens.require_scope("read", "Bearer ada")
    rewrite(path, token_line("read", "eve"))
    tokens.require_scope("read", "Bearer ada")  # it looks once a second
    clock.now = 2.0
    refusal(UnknownTokenError, tokens.require_scope, "read", "Bearer ada")
    tokens.require_scope("read", "Bearer eve")


@pytest.mark.parametrize("text", ["nonsense", "read abc", "write " + "0" * 64, None])
def test_an_unreadable_file_is_an_error_at_the_start_and_later_changes_nothing(
    path: Path, text: str | None, logs: list[EventDict]
) -> None:
    tokens = BearerTokens(path, clock := Clock())
    rewrite(path, text or "")
    if text is None:
        path.unlink()
    assert re.search(r"tokens_file .*(line 1 is not scopes|cannot be read)", refusal(SettingsError, BearerTokens, path))
    clock.now = 2.0
    tokens.require_scope("read", "Bearer ada")
    assert [entry["event"] for entry in logs] == ["tokens not read again"]
    clock.now = 4.0
    rewrite(path, token_line("read", "eve"))
    tokens.require_scope("read", "Bearer eve")


def test_a_changed_file_that_could_not_be_read_is_read_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("too many open files")

    tokens = BearerTokens(path, clock := Clock())
    rewrite(path, token_line("read", "eve"))
    with monkeypatch.context() as failing:
        failing.setattr(Path, "read_text", refuse)
        clock.now = 2.0
        tokens.require_scope("read", "Bearer ada")
    clock.now = 4.0
    refusal(UnknownTokenError, tokens.require_scope, "read", "Bearer ada")

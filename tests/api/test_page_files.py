"""The page at `/`: its files and security headers. Its content is tested in a browser (tests/page)."""

import re

import pytest
from fastapi import FastAPI

from streampca.api.page_files import FOLDER, HEADERS
from tests.api.client import Client

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
STRICT = {name.lower(): value for name, value in HEADERS.items()} | {"x-content-type-options": "nosniff"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_page_has_its_security_headers(client: Client, method: str) -> None:
    answer = client.request(method, "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers.items() >= STRICT.items()
    assert answer.content == ((FOLDER / "index.html").read_bytes() if method == "GET" else b"")
    assert int(answer.headers["content-length"]) == (FOLDER / "index.html").stat().st_size


def test_the_content_security_policy_allows_only_the_sidecar() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {source for sources in policy.values() for source in sources.split()} == {"'none'", "'self'", "data:"}
    assert "data:" in policy["img-src"]


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_security_headers_and_is_revalidated_by_etag(client: Client, file: str) -> None:
    answer = client.get(f"/page/{file}")
    assert answer.status_code == 200
    assert answer.content == (FOLDER / file).read_bytes()
    assert answer.headers.items() >= STRICT.items()
    kinds = {"js": "javascript", "css": "css", "html": "html", "svg": "svg"}
    assert kinds.get(file.rsplit(".", 1)[-1], "") in answer.headers["content-type"]
    again = client.get(f"/page/{file}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers.items() >= STRICT.items()


def test_the_page_refers_to_its_files_by_relative_paths_that_exist() -> None:
    """So it works behind a proxy with a path prefix."""
    found = re.findall(r'(?:src|href)="([^"#][^"]*)"', (FOLDER / "index.html").read_text(encoding="utf-8"))
    assert [name for name in found if name.startswith("page/")]
    for name in found:
        assert not name.startswith("/")
        assert "//" not in name
        if name.startswith("page/"):
            assert (FOLDER.parent / name).is_file()


@pytest.mark.parametrize("path", ["/page/", "/page", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py"])
def test_nothing_else_is_served(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("there is nothing at /")


def test_the_page_is_read_only(client: Client) -> None:
    assert client.post("/").status_code == 405
    assert client.post("/page/index.html").status_code == 405


@pytest.mark.parametrize(
    "path", ["/v1/model", "/v1/model/components", "/docs", "/metrics", "/healthz", "/nowhere", "/v1/model?version=x"]
)
def test_mime_sniffing_is_forbidden_for_every_answer(client: Client, path: str) -> None:
    assert client.get(path).headers.get_list("x-content-type-options") == ["nosniff"]


def test_the_page_is_not_in_the_openapi_document(app: FastAPI) -> None:
    assert not [path for path in app.openapi()["paths"] if path == "/" or path.startswith("/page")]

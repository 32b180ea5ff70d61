"""The page at `/`: its files and security headers. Its content is tested in a browser (tests/page)."""

import re

import pytest

from streampca.sidecar.page.endpoints import FOLDER, HEADERS
from tests.sidecar.http_client import Client

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
STRICT = {name.lower(): value for name, value in HEADERS.items()} | {"x-content-type-options": "nosniff"}


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
    names = re.findall(r'(?:src|href)="([^"#][^"]*)"', (FOLDER / "index.html").read_text(encoding="utf-8"))
    assert [name for name in names if name.startswith("page/")]
    for name in names:
        assert not name.startswith("/")
        assert "//" not in name
        if name.startswith("page/"):
            assert (FOLDER / name.removeprefix("page/")).is_file()


@pytest.mark.parametrize("path", ["/page/", "/page", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py"])
def test_nothing_else_is_served(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("there is nothing at /")

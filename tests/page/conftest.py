"""A browser for all tests of the page, and for each a store, a sidecar and a page that must log no errors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from streampca.fold.model_file import PublishedModel
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.example_models import TOPIC
from tests.java_server import unavailable
from tests.page.browser import check_page_logs, find_browser, start_chromium, wait_for_status
from tests.sidecar.process import SidecarProcess

expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of module scope: while the browser is open, its event loop runs in this thread, and asyncio allows only one."""
    if find_browser() is None:
        unavailable("Chromium is needed: `make browser` installs it")
    with start_chromium() as browser:
        yield browser


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def models(store: DirectoryStore) -> Models:
    return Models(store, TOPIC, keep=10)


@pytest.fixture
def sidecar(store: DirectoryStore) -> Iterator[str]:
    """The sidecar's URL."""
    with SidecarProcess(store.root) as process:
        yield process.wait_for_url()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB") as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page; at the end it must have logged no errors."""
    with check_page_logs(context.new_page()) as page:
        yield page


@pytest.fixture
def open_page(page: Page, sidecar: str, models: Models) -> Callable[..., Page]:
    """A function that opens the sidecar's page. With models, it saves them and waits until the last is served."""

    def open_saved(query: str = "", *published: PublishedModel) -> Page:
        for model in published:
            models.save(model)
        page.goto(f"{sidecar}/{query}")
        if published:
            wait_for_status(page, f"Serving version {published[-1].version:,}")
        return page

    return open_saved

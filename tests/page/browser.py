"""A real Chromium, driven by Playwright, and the steps that the tests of the page share."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from streampca.stores.directory import DirectoryStore
from streampca.stores.process_status import PartitionStatus, ProcessStatus, ProcessStatuses, TransformStatus
from tests.example_models import TOPIC

OpenPage = Callable[..., Page]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Return the path of the installed browser; None without one."""
    for name in _NAMES:
        path = shutil.which(name)
        if path:
            return path
    return None


@contextmanager
def start_chromium() -> Iterator[Browser]:
    """Start the browser, and close it at the end of the block."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    with sync_playwright() as started, started.chromium.launch(executable_path=find_browser(), args=sandbox) as browser:
        yield browser


@contextmanager
def check_page_logs(page: Page) -> Iterator[Page]:
    """Assert that the page logs no error or warning until the end of the block, and that no request fails."""
    complaints: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(f"{error}: {error.stack}"))
    page.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    yield page
    # A request is aborted if the page is left before the answer came.
    problems = [text for text in complaints if not text.endswith(": net::ERR_ABORTED")]
    assert not problems, problems


def wait_for_status(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_contain_text(text)


def check_with_axe(page: Page) -> None:
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()


def save(page: Page, button: str) -> tuple[str, bytes]:
    """Click a button that saves a file, and return the file's name and content."""
    with page.expect_download() as saved:
        page.get_by_role("button", name=button, exact=True).click()
    return saved.value.suggested_filename, saved.value.path().read_bytes()


def project(page: Page, vectors: list[list[float]]) -> None:
    """Project vectors as another client of the sidecar does."""
    page.request.post(urljoin(page.url, "v1/project"), data={"vectors": vectors})


def report_member(
    store: DirectoryStore, name: str, silent_s: float, lags: dict[str, int], started_at: float = 0.0, **transform: Any
) -> None:
    """Write the status report of a member of transform; with `started_at`, of a worker."""
    none = {"model_version": None, "awaits": None, "written": 0, "rejected": 0, "committed_at": None}
    status = ProcessStatus(
        name=name, state="transforming" if lags else "starting", trouble=None, started_at=started_at,
        updated_at=time.time() - silent_s, messages_per_second=2.5,
        partitions={p: PartitionStatus(position=1, lag=lag, learned=None, rejected=None, loss_ewma=None)
                    for p, lag in lags.items()},
        transform=None if started_at else TransformStatus(output_topic="<i>out</i>", **none | transform),
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(status)

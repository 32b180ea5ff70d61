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

Opened = Callable[..., Page]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """The installed browser's path."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, closed at the end of the block."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    with sync_playwright() as started, started.chromium.launch(executable_path=installed(), args=sandbox) as browser:
        yield browser


@contextmanager
def watched(page: Page) -> Iterator[Page]:
    """The page, which must log no error or warning until the end of the block, and no request may fail."""
    complaints: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"{request.url}: {request.failure}"))
    yield page
    # A request is aborted if the page is left before the answer came.
    assert [text for text in complaints if not text.endswith(": net::ERR_ABORTED")] == []


def status(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_contain_text(text)


def passes_axe(page: Page) -> None:
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()


def save(page: Page, button: str) -> tuple[str, bytes]:
    """The name and the content of the file that a button saves."""
    with page.expect_download() as saved:
        page.get_by_role("button", name=button, exact=True).click()
    return saved.value.suggested_filename, saved.value.path().read_bytes()


def project(page: Page, vectors: list[list[float]]) -> None:
    """Project vectors as another client of the sidecar does."""
    page.request.post(urljoin(page.url, "v1/project"), data={"vectors": vectors})


def report_member(
    store: DirectoryStore, name: str, silent_s: float, lags: dict[str, int], started_at: float = 0.0, **transform: Any
) -> None:
    """Write the report of a member of transform; with its start, that of a worker."""
    none = {"model_version": None, "awaits": None, "written": 0, "rejected": 0, "committed_at": None}
    status = ProcessStatus(
        name=name, state="transforming" if lags else "starting", trouble=None, started_at=started_at,
        updated_at=time.time() - silent_s, messages_per_second=2.5,
        partitions={p: PartitionStatus(position=1, lag=lag, learned=None, rejected=None, loss_ewma=None)
                    for p, lag in lags.items()},
        transform=None if started_at else TransformStatus(output_topic="<i>out</i>", **none | transform),
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(status)

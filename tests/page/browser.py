"""A real Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """The installed browser's path."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, closed at the end of the block."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed(), args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


class Complaints:
    """Collects the errors of a page: console errors and warnings, exceptions, failed requests."""

    def __init__(self, page: Page) -> None:
        self.all: list[str] = []
        page.on("console", lambda message: message.type in ("error", "warning") and self.all.append(message.text))
        page.on("pageerror", lambda error: self.all.append(str(error)))
        page.on("requestfailed", lambda request: self._failed(request.url, request.failure or ""))

    def _failed(self, url: str, why: str) -> None:
        if why != "net::ERR_ABORTED":  # the page was left before the answer came
            self.all.append(f"{url}: {why}")

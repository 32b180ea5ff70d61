"""The README's pictures of the page: `make screenshots` runs the demo on MNIST and takes screenshots.

Like the experiments it reads the data from the folder STREAMPCA_DATA, or downloads them.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, expect

from experiments import datasets
from tests.page.browser import chromium

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_VERSIONS = 30  # enough points for the curves
_TIMEOUT_S = 240.0


def main() -> None:
    pixels, _ = datasets.load("mnist", datasets.default_folder())
    order = np.random.default_rng(0).permutation(len(pixels))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "mnist.npy"
        np.save(file, (pixels[order] / 255).astype(np.float32))
        port = _free_port()
        demo = subprocess.Popen(
            [sys.executable, "-m", "streampca", "demo", "--file", str(file), "--port", str(port), "--rate", "200"],
            stdout=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for_versions(url)
            _desktop(browser, url)
            _phone(browser, url)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(30)


def _desktop(browser: Browser, url: str) -> None:
    with browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light") as context:
        page = context.new_page()
        _look(page, f"{url}/?range=900")
        expect(page.locator("#losses-chart canvas")).to_be_visible()
        page.screenshot(path=_IMAGES / "page.png", full_page=True)


def _phone(browser: Browser, url: str) -> None:
    with browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="dark", is_mobile=True, device_scale_factor=1.5
    ) as context:
        page = context.new_page()
        _look(page, f"{url}/?range=900")
        page.screenshot(path=_IMAGES / "page-phone.png")


def _look(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.locator("#status")).to_contain_text("Serving version", timeout=20_000)


def _wait_for_versions(url: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:  # noqa: S310 - our own http
                if answer.read().count(b",") > _VERSIONS:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    raise SystemExit(f"the demo published fewer than {_VERSIONS} versions within {_TIMEOUT_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()

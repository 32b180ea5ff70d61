"""The README's pictures of the page: `make screenshots` runs the demo on MNIST and takes screenshots.

Like the experiments it reads the data from the folder STREAMPCA_DATA, or downloads them.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, expect

from experiments import datasets
from tests.page.browser import start_chromium
from tests.ports import free_ports
from tests.waiting import answer_of, wait_until

_IMAGES = Path(__file__).parents[2] / "docs" / "images"
_VERSIONS = 30  # enough points for the curves


def main() -> None:
    pixels, _ = datasets.load("mnist", datasets.default_folder())
    order = np.random.default_rng(0).permutation(len(pixels))
    with tempfile.TemporaryDirectory() as folder, start_chromium() as browser:
        file = Path(folder) / "mnist.npy"
        np.save(file, (pixels[order] / 255).astype(np.float32))
        [port] = free_ports(1)
        demo = subprocess.Popen(
            [sys.executable, "-m", "streampca", "demo", "--file", str(file), "--port", str(port), "--rate", "200"],
            stdout=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: _versions(url) > _VERSIONS, 240, f"{_VERSIONS} versions")
            _take(browser, url, "page.png", viewport={"width": 1280, "height": 900}, color_scheme="light")
            phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "device_scale_factor": 1.5}
            _take(browser, url, "page-phone.png", color_scheme="dark", **phone)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(30)


def _take(browser: Browser, url: str, image: str, **options: Any) -> None:
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#status")).to_contain_text("Serving version", timeout=20_000)
        expect(page.locator("#losses-chart canvas")).to_be_visible()
        page.screenshot(path=_IMAGES / image, full_page=not options.get("is_mobile"))


def _versions(url: str) -> int:
    answer = answer_of(f"{url}/v1/models")
    return len(answer.json()["versions"]) if answer else 0


if __name__ == "__main__":
    main()

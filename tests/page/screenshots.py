"""The pictures of the page: `make screenshots` takes those of the README and of the tutorials.

Those of the README are of the demo on MNIST. Like the experiments it reads the data from the folder STREAMPCA_DATA, or
downloads them. For those of the tutorials, it runs the commands before a picture on a real broker.
"""

import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, expect

from experiments import datasets
from tests.docs_tables import DOCS
from tests.kafka_broker import Broker
from tests.page.browser import start_chromium
from tests.ports import free_ports
from tests.tutorials import at_addresses, in_a_shell, script_of
from tests.waiting import answer_of, wait_until

_ROOT = DOCS.parent
_IMAGES = DOCS / "images"
_VERSIONS = 30  # enough points for the curves


def main() -> None:
    """Take all pictures; with a URL, an element and a file, only this one, as the commands of a tutorial ask for it."""
    if sys.argv[1:]:
        url, element, image = sys.argv[1:]
        with start_chromium() as browser:
            _take_of_tutorial(browser, url, element, Path(image))
        return
    _take_of_demo()
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        _run_tutorial(broker, "drift", "body")
        _run_tutorial(broker, "sensors", "section:has(#p-chart)")


def _take_of_demo() -> None:
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


def _run_tutorial(broker: Broker, name: str, element: str) -> None:
    """Run the commands of a tutorial up to its picture, and take the picture: an element at the URL before it."""
    image = f"tutorial-{name}.png"
    ports = free_ports(3)
    text = at_addresses(DOCS / "tutorials" / f"{name}.md", broker.bootstrap, *ports)
    text_before, _, _ = text.partition(image)
    url = re.findall(r"<(http://localhost:[^>]*)>", text_before)[-1]
    words = [sys.executable, "-m", "tests.page.screenshots", url, element, str(_IMAGES / image)]
    port, metrics_port, _ = ports
    with tempfile.TemporaryDirectory() as folder:
        script = script_of(text_before, Path(folder)) + f"PYTHONPATH={_ROOT} {shlex.join(words)}\n"
        in_a_shell(script, Path(folder), port=port, metrics_port=metrics_port)


def _take_of_tutorial(browser: Browser, url: str, element: str, image: Path) -> None:
    with browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme="light") as context:
        page = context.new_page()
        page.goto(url)
        expect(page.locator(f"{element} canvas:visible").first).to_be_visible(timeout=20_000)
        page.locator(element).screenshot(path=image)


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

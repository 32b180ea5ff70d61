"""The page in a real Chromium for everybody: on a phone, by the keyboard, by a screen reader, with a token."""

import itertools
import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, numbered, with_past_scores
from tests.page.browser import OpenPage, check_page_logs, check_with_axe, report_member, wait_for_status
from tests.process.test_bearer_tokens import token_line
from tests.sidecar.process import SidecarProcess

TABS = {  # and what is shown last
    "Over time": "#losses-chart canvas", "Components": "#components .bars", "Vectors": "#p-chart canvas",
    "Workers": "#transform-ended",
}  # fmt: skip
NAMES = ["temperature", "humidity", "pressure", "flow", "revolutions"]


def test_fits_a_phone_in_the_dark(browser: Browser, models: Models, sidecar: str) -> None:
    models.save(numbered(123_456_789, d=784, k=20))
    phone: Any = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with browser.new_context(color_scheme="dark", **phone) as context, check_page_logs(context.new_page()) as page:
        page.goto(sidecar)
        wait_for_status(page, "Serving version 123,456,789")
        page.get_by_role("radio", name="Components").check()
        expect(page.locator("#components figure")).to_have_count(20)
        red, green, blue = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
        assert max(map(int, (red, green, blue))) < 64
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != f"rgb({red}, {green}, {blue})"
        expect(page.locator("#scree-chart canvas")).to_be_visible()


def project_pumps(page: Page) -> None:
    """Project records of two pumps, one with a long name; the page shows these names if they are labels."""
    for pump in ("pump-07", "pump-" + "x" * 60):
        record = dict.fromkeys(NAMES, 30.0) | {"pump": pump}
        answer = page.request.post(urljoin(page.url, "v1/project"), data={"records": [record]})
        expect(answer).to_be_ok()


@pytest.mark.parametrize("label", ["", "pump"])
def test_axe_finds_nothing(browser: Browser, models: Models, store: DirectoryStore, label: str) -> None:
    """Where records have no label, and where the setting `label` names it."""
    for version in (123_456_788, 123_456_789):
        published = replace(numbered(version), names=NAMES, partition_losses={0: 0.1, 1: 0.2})
        models.save(with_past_scores(published, np.eye(5)))
    Models(store, "orders").save(numbered(10))
    for name, silent_s in (("busy", 0), ("ended", 100)):
        report_member(store, name, silent_s, {"0": 1_000})
    with SidecarProcess(store.root, label=label) as process:
        check_all_tabs_with_axe(browser, process.wait_for_url(), has_labels=label != "")


def check_all_tabs_with_axe(browser: Browser, sidecar: str, *, has_labels: bool) -> None:
    for width, scheme in itertools.product((1366, 390), ("light", "dark")):
        options: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "is_mobile": width == 390}
        with browser.new_context(**options) as context, check_page_logs(context.new_page()) as page:
            page.goto(f"{sidecar}/?tab=vectors&with=123456788")
            project_pumps(page)
            expect(page.locator("#worst tr").nth(1)).to_be_visible()
            expect(page.get_by_role("columnheader", name="Record")).to_be_visible(visible=has_labels)
            for button in ("Fill in an example", "Project"):
                page.get_by_role("button", name=button).click()
                expect(page.locator("#try-message" if button != "Project" else "#try-summary")).not_to_be_empty()
            for tab, shown in TABS.items():
                page.get_by_role("radio", name=tab).check()
                expect(page.locator(shown).first).to_be_visible()
                for summary in page.locator(".panel:not([hidden]) summary:visible").all():
                    summary.click()
                check_with_axe(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.goto(f"{sidecar}/docs")
            wait_for_status(page, "23 operations")
            for summary in page.locator("summary").all():
                summary.click()
            form = page.get_by_role("form", name="Try project", exact=True)
            expect(form.get_by_label("Body")).to_have_value(re.compile("revolutions"))
            form.get_by_role("button", name="Send").click()
            expect(form.get_by_role("status")).to_contain_text('"coordinates":[[')
            check_with_axe(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_axe_finds_nothing_among_strips_with_a_description(browser: Browser, models: Models, sidecar: str) -> None:
    models.save(numbered(10, d=41, k=17))
    for width, scheme in itertools.product((1366, 390), ("light", "dark")):
        options: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        with browser.new_context(**options) as context, check_page_logs(context.new_page()) as page:
            page.goto(f"{sidecar}/?tab=components")
            page.get_by_text("1 more").click()
            page.locator("#components canvas").last.hover()
            expect(page.locator(".beside-pointer:visible")).to_have_count(1)
            check_with_axe(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_axe_finds_nothing_in_rare_states(browser: Browser, models: Models, store: DirectoryStore) -> None:
    """Without a model, with an earlier version and an outdated pin, after a wrong vector, and without the sidecar."""
    with ExitStack() as contexts:
        pages: list[tuple[int, Page]] = []
        for width, scheme in itertools.product((1366, 390), ("light", "dark")):
            options: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
            context = contexts.enter_context(browser.new_context(**options))
            pages.append((width, context.new_page()))

        def check(status: str) -> None:
            for width, page in pages:
                wait_for_status(page, status)
                check_with_axe(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= width

        with SidecarProcess(store.root, label="pump") as process:
            url = process.wait_for_url()
            for _, page in pages:
                page.goto(f"{url}/?tab=vectors")
            check("there is no store at")
            for version in (10, 20):
                models.save(with_past_scores(replace(numbered(version), names=NAMES), np.eye(5)))
            Pins(store, TOPIC).set("healthy", 10)
            first_page = pages[0][1]
            wait_for_status(first_page, "Serving version 20")  # before, the sidecar cannot project
            project_pumps(first_page)
            for _, page in pages:
                wait_for_status(page, "Serving version 20")
                expect(page.locator("#verdict li").first).to_be_visible()
                expect(page.get_by_role("columnheader", name="Record")).to_be_visible()
                page.locator("#vector").fill("1 2 wrong")
                page.get_by_role("button", name="Project").click()
                expect(page.locator("#try-message")).not_to_be_empty()
            check("Serving version 20")
            for _, page in pages:
                page.locator("#slider").fill("0")
            check("Showing the earlier version 10")
        check("The sidecar has not responded since")


def test_everything_can_be_reached_by_the_keyboard(open_page: OpenPage) -> None:
    page = open_page("", numbered(10), numbered(20))
    active = "(({id, name, className, textContent}) => id || name || className || textContent)(document.activeElement)"

    def reach(*names: str) -> None:
        """Press Tab until the last of these has the focus; the others have had it before, in this order."""
        reached: list[str] = []
        while not reached or reached[-1] != names[-1]:
            assert len(reached) < 30
            page.keyboard.press("Tab")
            reached.append(page.evaluate(active))
        assert [name for name in reached if name in names] == [*names]

    reach("skip", "slider", "follow", "tab", "range", "log", "CSV of Loss", "PNG of Loss")
    for tab, names in {
        "Components": ["other", "shape"], "Vectors": ["recent-x", "recent-y", "colour", "vector", "example"],
        "Workers": ["scroll"],
    }.items():  # fmt: skip
        page.locator("[name=tab]:checked").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("radio", name=tab)).to_be_focused()
        expect(page.locator(f"#{tab.lower()}-panel")).to_be_visible()
        reach(*names)


def test_works_behind_a_prefix(page: Page, models: Models, sidecar: str) -> None:
    models.save(numbered(10))

    def forward(route) -> None:  # type: ignore[no-untyped-def]
        route.fulfill(response=route.fetch(url=route.request.url.replace("/pca/", "/")))

    page.route("**/*", lambda route: route.abort())  # nothing else is there
    page.route("**/pca/**", forward)  # tried first
    page.goto(f"{sidecar}/pca/")
    wait_for_status(page, "Serving version 10")
    page.get_by_role("link", name="API").click()
    wait_for_status(page, "23 operations")
    page.goto("about:blank")  # before the routes end, and without them there is nothing for a poll
    page.unroute_all(behavior="wait")


LATE = """const now = window.fetch;
window.fetch = async (path, options) => {
    const answer = await now(path, options);
    if (path.endsWith("workers")) await new Promise((resolve) => setTimeout(resolve, 500));
    return answer;
};"""  # these answers arrive when the question that another one has raised is answered


def test_the_page_asks_for_a_token(
    models: Models, store: DirectoryStore, tmp_path: Path, context: BrowserContext
) -> None:
    models.save(numbered(10))
    (tmp_path / "tokens").write_text(token_line("read", "ada"))
    page = context.new_page()
    page.add_init_script(LATE)
    field = page.get_by_role("textbox", name="Token")
    with SidecarProcess(store.root, tokens_file=str(tmp_path / "tokens")) as process:
        page.goto(process.wait_for_url())
        for token, why in (
            ("wrong", "This sidecar needs a token."),
            ("ada", "this token is not known: it was revoked"),
        ):
            wait_for_status(page, why)
            expect(field).to_be_focused()
            expect(field).to_have_accessible_description(re.compile(f"^{why}"))
            for scheme in ("dark", "light"):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                check_with_axe(page)
            field.fill(token)
            page.keyboard.press("Enter")
        wait_for_status(page, "Serving version 10")
        page.reload()
        wait_for_status(page, "Serving version 10")
        with page.expect_download() as saved:
            page.get_by_role("link", name="Model as JSON").click()
        assert saved.value.suggested_filename == "model.json"
        assert json.loads(saved.value.path().read_bytes())["version"] == 10
        page.get_by_role("link", name="Metrics").click()
        expect(field).to_have_accessible_description("this token may not do that: it lacks the scope metrics")
        page.get_by_role("button", name="Cancel").click()
        expect(field).to_be_hidden()

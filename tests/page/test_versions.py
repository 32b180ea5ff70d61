"""The versions and topics that the page shows, in a real Chromium."""

import itertools
import time
from dataclasses import replace

import numpy as np
from playwright.sync_api import Browser, BrowserContext, Page, expect

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, example_model, numbered, with_stats
from tests.page.browser import OpenPage, check_with_axe, wait_for_status
from tests.ports import free_ports
from tests.sidecar.process import SidecarProcess


def test_shows_the_newest_model(models: Models, open_page: OpenPage) -> None:
    page = open_page("", numbered(1200))
    figures = {"topic": TOPIC, "version": "1,200", "loss": "12.5 %", "explained": "50 %", "shape-of-model": "5 → 2"}
    for name, text in figures.items():
        expect(page.locator(f"#{name}")).to_have_text(text)
    for tab, chart in {"Components": "scree", "Vectors": "recent", "Over time": "loss"}.items():
        page.get_by_role("radio", name=tab).check()
        expect(page.locator(f"#{chart}-chart canvas")).to_be_visible()
    expect(page.locator("#components figure")).to_have_count(2)
    expect(page.locator("#loss-chart .u-legend")).to_contain_text("12.5 %")  # without a pointer
    expect(page.locator("#explained-chart .u-legend")).to_contain_text("50 %")

    models.save(with_stats(numbered(2000), loss_ewma=0.5))  # appears without a reload
    wait_for_status(page, "Serving version 2,000")
    expect(page.locator("#slider-value")).to_contain_text("2,000 (2 of 2), published")
    expect(page.locator("#loss-chart .u-legend")).to_contain_text("50 %")


def test_other_topics_of_the_store_can_be_shown(store: DirectoryStore, open_page: OpenPage) -> None:
    page = open_page("", numbered(10))
    expect(page.get_by_label("Topic")).to_be_hidden()
    other = Models(store, "orders")
    for version in (7, 8):
        other.save(replace(numbered(version), topic="orders"))
    page.reload()
    page.get_by_label("Topic").select_option("orders")
    wait_for_status(page, f"Newest version 8; this sidecar serves {TOPIC}")
    assert page.url.endswith("/?topic=orders")
    expect(page.get_by_role("link", name="Model as JSON")).to_have_attribute(
        "href", "v1/page/model?version=8&topic=orders"
    )
    expect(page.get_by_role("radio", name="Vectors")).to_be_hidden()
    page.get_by_role("radio", name="Components").check()
    expect(page.locator("#scree-chart canvas")).to_be_visible()
    expect(page.locator("#components")).to_be_hidden()
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    wait_for_status(page, "Showing the earlier version 7; the newest is 8")
    other.save(replace(numbered(9), topic="orders"))
    wait_for_status(page, "the newest is 9")
    page.get_by_label("Topic").select_option(TOPIC)
    wait_for_status(page, "Serving version 10")
    expect(page.get_by_role("radio", name="Vectors")).to_be_visible()


def test_shows_that_there_is_no_model_and_then_the_first(
    store: DirectoryStore, models: Models, open_page: OpenPage
) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="No model yet")).to_be_visible()
    wait_for_status(page, "there is no store at")
    store.root.mkdir()
    wait_for_status(page, "no model has been published yet")
    expect(page.locator("#model")).to_be_hidden()
    models.save(numbered(10))
    wait_for_status(page, "Serving version 10")
    expect(page.get_by_role("heading", name="No model yet")).to_be_hidden()


def test_shows_when_the_sidecar_is_down_and_up_again(browser: Browser, models: Models, store: DirectoryStore) -> None:
    models.save(numbered(10))
    with browser.new_context() as context:
        page, errors, (port,) = context.new_page(), list[object](), free_ports(1)
        page.on("pageerror", lambda error: errors.append(error))
        with SidecarProcess(store.root, port=port) as process:
            page.route("**/v1/page/recent?*", lambda route: route.abort())  # it stops between two answers
            page.goto(process.wait_for_url())
            wait_for_status(page, "The sidecar has not responded since")
            page.unroute_all()
            wait_for_status(page, "Serving version 10")
        wait_for_status(page, "The sidecar has not responded since")
        expect(page.locator("#version")).to_have_text("10")
        check_with_axe(page)
        page.emulate_media(color_scheme="dark")
        check_with_axe(page)
        page.get_by_role("radio", name="Vectors").check()
        page.locator("#vector").fill("1 2 3 4 5")
        page.get_by_role("button", name="Project").click()
        expect(page.locator("#try-message")).to_have_text("the sidecar does not respond")
        with SidecarProcess(store.root, port=port) as process:
            process.wait_for_url()
            wait_for_status(page, "Serving version 10")
        assert errors == []


def test_a_verdict_on_each_pinned_model_stands_before_the_figures(models: Models, open_page: OpenPage) -> None:
    model = example_model(30, d=12)
    shift = np.eye(12)[0] * np.sqrt(0.3 * model.total_variance)
    pinned = [replace(numbered(10), model=model), replace(numbered(20), model=replace(model, mean=model.mean + shift))]
    page = open_page("", *pinned, replace(numbered(30), model=model))
    verdict = page.locator("#verdict")
    expect(verdict).to_be_hidden()
    pins = Pins(models.store, TOPIC)
    pins.set("first", 10)
    expect(verdict.locator("li")).to_have_text(["The model fits the stream (pinned as first, version 10)"])
    pins.set("moved", 20)
    expect(verdict.locator("li")).to_have_text([
        "The model fits the stream (pinned as first, version 10)",
        "Outdated: the mean has moved (pinned as moved, version 20)",
    ])  # fmt: skip
    assert (verdict.bounding_box() or {})["y"] < (page.locator(".tiles").bounding_box() or {})["y"]
    for width, scheme in itertools.product((1366, 390), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        check_with_axe(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#slider").fill("0")  # the verdict is about the newest version
    wait_for_status(page, "Showing the earlier version 10")
    expect(verdict).to_be_hidden()
    page.locator("#slider").fill("2")
    expect(verdict).to_be_visible()
    models.save(numbered(40, d=12))  # with other axes
    expect(verdict.locator("li").first).to_contain_text("Outdated: the axes have turned")


def test_shows_why_the_sidecar_is_not_ready(page: Page, models: Models, store: DirectoryStore) -> None:
    models.save(numbered(10))
    with SidecarProcess(store.root, model_max_age_s=1) as process:
        page.goto(process.wait_for_url())
        wait_for_status(page, "Not ready: the newest model was found")
        page.goto("about:blank")


def test_the_slider_selects_earlier_versions(models: Models, open_page: OpenPage) -> None:
    earlier = with_stats(numbered(20, published_at=time.time() - 130), loss_ewma=0.75)
    page = open_page("", numbered(10, published_at=time.time() - 140), earlier, numbered(30))
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    wait_for_status(page, "Showing the earlier version 20; the newest is 30")
    expect(page.locator("#version")).to_have_text("20")
    expect(page.locator("#age")).to_have_text("2 min ago")
    expect(page.locator("#loss-chart .u-value").last).to_have_text("75 %")
    expect(page.get_by_role("button", name="Follow the newest")).to_have_attribute("aria-pressed", "false")

    models.save(numbered(40))
    wait_for_status(page, "the newest is 40")
    expect(page.locator("#version")).to_have_text("20")

    page.get_by_role("button", name="Follow the newest").click()
    wait_for_status(page, "Serving version 40")


def test_a_link_keeps_what_is_seen(
    store: DirectoryStore, models: Models, open_page: OpenPage, context: BrowserContext
) -> None:
    orders = Models(store, "orders")
    for version in (10, 20, 30):
        models.save(numbered(version, k=3))
        orders.save(replace(numbered(version + 1), topic="orders"))
    page = open_page()
    wait_for_status(page, "Serving version 30")
    page.get_by_label("Log scale for losses").check()
    page.get_by_role("radio", name="Last hour").check()
    page.locator("#slider").fill("1")
    wait_for_status(page, "Showing the earlier version 20")
    page.get_by_role("radio", name="Components").check()
    page.get_by_label("Compare with").fill("0")
    expect(page.locator("#other-value")).to_contain_text("10 (1 of 3)")
    page.get_by_role("radio", name="Vectors").check()
    page.get_by_label("Component of the horizontal axis").select_option("3")
    page.get_by_label("Component of the vertical axis").select_option("1")

    linked = context.new_page()
    linked.goto(page.url)
    wait_for_status(linked, "Showing the earlier version 20")
    expect(linked.locator("#vectors-panel")).to_be_visible()
    expect(linked.get_by_label("Component of the horizontal axis")).to_have_value("3")
    expect(linked.get_by_label("Component of the vertical axis")).to_have_value("1")
    linked.get_by_role("radio", name="Components").check()
    expect(linked.locator("#other-value")).to_contain_text("10 (1 of 3)")
    linked.get_by_role("radio", name="Over time").check()
    expect(linked.get_by_role("radio", name="Last hour")).to_be_checked()
    expect(linked.get_by_label("Log scale for losses")).to_be_checked()
    assert "tab" not in linked.url

    linked.get_by_label("Topic").select_option("orders")  # versions are those of a topic
    wait_for_status(linked, f"Newest version 31; this sidecar serves {TOPIC}")
    expect(linked.get_by_label("Log scale for losses")).to_be_checked()
    page.goto(page.url.replace("version=20", "version=15"))  # no longer in the store
    wait_for_status(page, "Serving version 30")
    expect(page.get_by_role("button", name="Follow the newest")).to_have_attribute("aria-pressed", "true")

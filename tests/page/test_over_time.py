"""The charts over time, in a real Chromium."""

import re
import time
from dataclasses import replace
from datetime import UTC, datetime

from playwright.sync_api import Page, expect

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, numbered, with_stats
from tests.page.browser import OpenPage, report_member, save, wait_for_status

COLOURS_OF_PLOT = """async bytes => {
    const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)]));
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    const {data} = context.getImageData(0, 40, image.width, 150); // below the title, above the legend
    return new Set(new Uint32Array(data.buffer)).size;
}"""


def test_throughput_lag_and_losses_of_partitions_over_time(models: Models, open_page: OpenPage) -> None:
    now = round(time.time())
    few, many = ({p: (1 + p) / 100 for p in range(n)} for n in (2, 14))
    for version, at, losses in ((1000, now - 9000, few), (4000, now - 8990, many)):
        published = numbered(version, published_at=at)
        models.save(replace(with_stats(published, last_timestamp_ms=1000 * (at - 5400)), partition_losses=losses))
    page = open_page()
    expect(page.locator("#rate-chart")).to_have_attribute("aria-label", re.compile("^Throughput: .*, Messages 300/s$"))
    expect(page.locator("#lag-chart")).to_have_attribute("aria-label", re.compile("^Lag: .*, Lag 90 min$"))
    expect(page.locator("#losses-which")).to_have_text("The 12 partitions where it is the greatest now.")
    expect(page.locator("#losses-chart .u-legend .u-series")).to_have_count(1 + 12)
    expect(page.locator("#losses-chart .u-legend")).to_contain_text("Partition 1314 %")
    page.locator("#rate-chart + details").locator("summary").click()
    expect(page.locator("#rate-chart + details td:last-child")).to_have_text(["300/s", "–"])  # the newest first
    name, content = save(page, "CSV of Throughput")
    assert re.fullmatch(rf"{TOPIC}-version-4000-throughput-\d{{8}}T\d{{6}}Z\.csv", name)
    at = [f"{datetime.fromtimestamp(now - ago, UTC):%Y-%m-%dT%H:%M:%S}.000Z" for ago in (9000, 8990)]
    assert content.decode() == f"Published,Messages (per second)\r\n{at[0]},\r\n{at[1]},300\r\n"
    assert page.evaluate(COLOURS_OF_PLOT, list(save(page, "PNG of Loss by partition")[1])) > 12  # lines


def published_ago(models: Models, *seconds: float) -> None:
    """Save a version for each, 10, 20, …, published so many seconds ago."""
    for i, ago in enumerate(seconds):
        losses = {0: 0.01 * (1 + i), 1: 0.02}
        models.save(replace(numbered(10 * (1 + i), published_at=time.time() - ago), partition_losses=losses))


def test_a_range_of_time_applies_to_all_charts_over_time(models: Models, open_page: OpenPage) -> None:
    published_ago(models, 7300, 7200, 1800, 1700, 60, 30)
    page = open_page()
    wait_for_status(page, "Serving version 60")
    charts = ("loss", "explained", "rate", "lag", "losses")
    for chart in charts:
        page.locator(f"#{chart}-chart + details summary").click()

    def shows(n: int) -> None:
        for chart in charts:
            expect(page.locator(f"#{chart}-chart + details tbody tr")).to_have_count(n)

    shows(2)
    for name, n in (("Last hour", 4), ("Last 15 minutes", 2), ("All", 6)):
        page.get_by_role("radio", name=name).check()
        shows(n)
    area = page.locator("#rate-chart .u-over")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    shows(2)  # those of half an hour ago, at 0.75 and 0.77 of the axis
    expect(page.locator("[name=range]:checked")).to_have_count(0)
    page.reload()
    wait_for_status(page, "Serving version 60")
    expect(page.locator("#range-text")).to_have_text(re.compile(r"\d\d:\d\d:\d\d to .*\d\d:\d\d:\d\d$"))
    for chart in charts:
        page.locator(f"#{chart}-chart + details summary").click()
    shows(2)
    page.locator("#lag-chart .u-over").dblclick()
    shows(6)
    expect(page.get_by_role("radio", name="All")).to_be_checked()
    page.get_by_role("radio", name="Last 15 minutes").check()
    assert "range" not in page.url
    page.locator("#slider").fill("0")
    expect(page.locator("#range-text")).to_have_text(re.compile("^Around the version shown: "))
    shows(2)
    page.goto(f"{page.url}&range=1-2")  # without any version
    expect(page.locator("#loss-chart")).to_have_attribute("aria-label", "Loss: Published –, Loss –")


WATCH_TEXTS = """const {fillText} = CanvasRenderingContext2D.prototype;
[window.drawn, window.cut] = [new Set(), new Set()];
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const {actualBoundingBoxLeft: left, actualBoundingBoxRight: right} = this.measureText(text);
    drawn.add(text);
    if (text.includes("%") && (x < left || x + right > this.canvas.width)) cut.add(text);
    fillText.call(this, text, x, y);
};"""


def test_marks_and_labels(models: Models, store: DirectoryStore, page: Page, open_page: OpenPage) -> None:
    """Starts, settings and pins; a log scale, on which zero has no place; no label is cut, no tiny change a cliff."""
    now = time.time()
    report_member(store, "again", 0, {}, started_at=now - 100.5)
    for i, loss in enumerate((0.5, 0.05, 1e-6, 0.0)):
        published = numbered(10 + i, published_at=now - 102 + i)
        model = replace(published.model, total_variance=published.model.total_variance * 0.5 / (0.0975975 + 2e-6 * i))
        models.save(replace(with_stats(published, loss_ewma=loss), model=model, settings={"components": max(2, i)}))
    Pins(store, TOPIC).set("index", 12)
    page.add_init_script(WATCH_TEXTS)
    open_page("?log=1")
    page.get_by_text("Marks: 1 × R (worker started), 1 × S (settings changed), 1 × P (version pinned)").click()
    marks = ("R .*: worker again started", "P .*: version 12, pinned as index", "S .*: version 13: components 2 → 3")
    expect(page.locator("#marks li")).to_have_text([re.compile(f"^{mark}$") for mark in marks])
    page.wait_for_function("['R', 'S', 'P', '9.50 %', '10.00 %', 'below 0.001 %'].every(text => drawn.has(text))")
    page.get_by_label("Log scale for losses").uncheck()
    page.wait_for_function("drawn.has('20 %')")
    assert page.evaluate("[...cut]") == []
    assert "log" not in page.url

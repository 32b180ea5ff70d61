"""The charts over time, in a real Chromium."""

import re
import time
from dataclasses import replace

import numpy as np
from playwright.sync_api import expect

from streampca.stores.models import Models
from tests.example_models import numbered
from tests.page.browser import Opened, status


def test_throughput_lag_and_losses_of_partitions_over_time(models: Models, opened: Opened) -> None:
    now = round(time.time())
    few, many = ({p: (1 + p) / 100 for p in range(n)} for n in (2, 14))
    for version, at, losses in ((1000, now - 9000, few), (4000, now - 8990, many)):
        published = numbered(version, published_at=at)
        models.save(replace(published, last_timestamp_ms=1000 * (at - 5400), partition_losses=losses))
    page = opened()
    expect(page.locator("#rate-chart")).to_have_attribute("aria-label", re.compile("^Throughput: .*, Messages 300/s$"))
    expect(page.locator("#lag-chart")).to_have_attribute("aria-label", re.compile("^Lag: .*, Lag 90 min$"))
    expect(page.locator("#losses-which")).to_have_text("The 12 partitions where it is the greatest now.")
    expect(page.locator("#losses-chart .u-legend .u-series")).to_have_count(1 + 12)
    expect(page.locator("#losses-chart .u-legend")).to_contain_text("Partition 1314 %")
    page.locator("#rate-chart + details").locator("summary").click()
    expect(page.locator("#rate-chart + details td:last-child")).to_have_text(["300/s", "–"])  # the newest first


def published_ago(models: Models, *seconds: float) -> None:
    """Save a version for each, 10, 20, …, published so many seconds ago."""
    for i, ago in enumerate(seconds):
        losses = {0: 0.01 * (1 + i), 1: 0.02}
        models.save(replace(numbered(10 * (1 + i), published_at=time.time() - ago), partition_losses=losses))


def test_a_range_of_time_applies_to_all_charts_over_time(models: Models, opened: Opened) -> None:
    published_ago(models, 7300, 7200, 1800, 1700, 60, 30)
    page = opened()
    status(page, "Serving version 60")
    charts = ("loss", "explained", "rate", "lag", "losses")
    for chart in charts:
        page.locator(f"#{chart}-chart + details summary").click()

    def shows(n: int) -> None:
        for chart in charts:
            expect(page.locator(f"#{chart}-chart + details tbody tr")).to_have_count(n)

    shows(6)
    for name, n in (("Last 15 minutes", 2), ("Last hour", 4), ("All", 6)):
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
    status(page, "Serving version 60")
    expect(page.locator("#range-text")).to_have_text(re.compile(r"\d\d:\d\d:\d\d to .*\d\d:\d\d:\d\d$"))
    for chart in charts:
        page.locator(f"#{chart}-chart + details summary").click()
    shows(2)
    page.locator("#lag-chart .u-over").dblclick()
    shows(6)
    expect(page.get_by_role("radio", name="All")).to_be_checked()
    assert "range" not in page.url
    page.goto(f"{page.url}?range=1")  # without any version
    expect(page.locator("#loss-chart")).to_have_attribute("aria-label", "Loss: Published –, Loss –")


def test_losses_on_a_log_scale(models: Models, opened: Opened) -> None:
    now = time.time()
    for i, loss in enumerate((0.5, 0.05, 0.005, 0.0)):  # zero has no logarithm
        models.save(
            replace(numbered(10 + i, published_at=now - 100 + i), loss_ewma=loss, partition_losses={0: loss, 1: 1.0})
        )
    page = opened()
    status(page, "Serving version 13")

    def drops() -> list[float]:
        """Of the line, from the first version to the second, and from there to the third, in pixels."""
        area = page.locator("#loss-chart .u-over")
        heights = []
        for i in range(3):
            width = area.evaluate("area => area.clientWidth")
            area.hover(position={"x": min(width * i / 3 + 1, width - 1), "y": 5})
            expect(page.locator("#loss-chart .u-legend")).to_contain_text(("50 %", "5 %", "0.5 %")[i])
            box = page.locator("#loss-chart .u-cursor-pt").bounding_box()
            heights.append(box["y"])
        return np.diff(heights).tolist()

    first, second = drops()
    assert first > 5 * second > 0  # 45 % and 4.5 %
    page.get_by_label("Log scale for losses").check()
    first, second = drops()
    assert abs(first - second) <= 1  # a tenth, twice
    page.reload()
    expect(page.get_by_label("Log scale for losses")).to_be_checked()
    first, second = drops()
    assert abs(first - second) <= 1
    page.get_by_label("Log scale for losses").uncheck()
    assert "log" not in page.url

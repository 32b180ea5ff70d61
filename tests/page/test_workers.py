"""Members of the groups on the page, in a real Chromium."""

import re
import time

from playwright.sync_api import expect

from streampca.stores.directory import DirectoryStore
from tests.page.browser import OpenPage, report_member
from tests.waiting import every


def test_shows_what_members_of_transform_write_and_wait_for(store: DirectoryStore, open_page: OpenPage) -> None:
    store.root.mkdir()
    at = time.time() - 181
    report_member(
        store, "busy", 0, {"0": 1_000, "2": 234}, model_version=1_200, written=54_321, rejected=3, committed_at=at
    )
    report_member(store, "dead", 61, {"1": 7}, model_version=1_100, written=1)
    report_member(store, "new", 0, {}, awaits="no model has been published yet")
    page = open_page()
    lines = page.locator("#transform p")
    expect(lines).to_have_text([
        re.compile("^busy is transforming, 3 messages/s; up for"),
        re.compile("^dead silent, last report [0-9]+ s ago$"),
        re.compile("^new is starting, .*; waits for a model: no model has been published yet$"),
    ])  # fmt: skip
    cells = page.locator("#members tr").first.locator("td")
    expect(cells).to_have_text(["busy", "<i>out</i>", "1,200", "0, 2", "1,234", "54,321", "3", "3 min ago"])
    expect(page.locator("#members tr").last.locator("td")).to_have_text(["new", "<i>out</i>", *"–––", "0", "0", "–"])
    expect(page.locator("#workers")).to_have_text("No worker has reported within the last hour.")
    expect(page.locator("#partitions tr")).to_have_count(0)


def test_members_that_ended_are_folded(store: DirectoryStore, open_page: OpenPage) -> None:
    store.root.mkdir()
    for name, silent_s, lags in (("busy", 0, {"0": 1}), ("crashed", 100, {"1": 1}), ("replaced", 100, {"0": 1})):
        report_member(store, name, silent_s, lags)
    page = open_page("?tab=workers")
    ended = page.locator("#transform-ended")
    with every(0.5, lambda: report_member(store, "just", 50, {})):  # always less than a minute ago
        expect(page.locator("#transform strong")).to_have_text(["busy", "crashed", "just"])  # nobody took over 1
        expect(page.locator("#members tr")).to_have_count(3)
        expect(ended.locator("summary")).to_have_text("1 ended more than a minute ago")
        expect(ended.locator("p")).to_be_hidden()
        ended.locator("summary").click()
        expect(ended.locator("p")).to_contain_text("replaced silent, last report")
        report_member(store, "busy", 0, {"0": 1, "1": 1})
        expect(ended.locator("summary")).to_have_text("2 ended more than a minute ago")
        expect(ended.locator("p").first).to_be_visible()  # it stays open
        expect(page.locator("#workers-ended")).to_be_hidden()

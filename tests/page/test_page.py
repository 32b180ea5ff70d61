"""The page at `/` in a real Chromium, on a real sidecar."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect
from scipy.linalg import subspace_angles

from streampca.pca import scoring
from streampca.pca.scoring import Calibration
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.process_status import (
    PartitionStatus,
    ProcessStatus,
    ProcessStatuses,
    TransformStatus,
)
from tests.page.browser import Complaints
from tests.process.test_bearer_tokens import line
from tests.sidecar.known import TOPIC, known, known_model
from tests.sidecar.process import SidecarProcess

Opened = Callable[..., Page]

TABS = {  # and what is shown last
    "Over time": "#losses-chart canvas", "Components": "#components canvas", "Vectors": "#p-chart canvas",
    "Workers": "#transform-ended",
}  # fmt: skip


def status(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_contain_text(text)


def project(page: Page, vectors: list[list[float]]) -> None:
    """Project vectors as another client of the sidecar does."""
    page.request.post(urljoin(page.url, "v1/project"), data={"vectors": vectors})


def test_shows_the_model(models: Models, opened: Opened) -> None:
    models.save(known(1200))
    page = opened()
    status(page, "Serving version 1,200")
    expect(page.locator("#topic")).to_have_text(TOPIC)
    expect(page.locator("#version")).to_have_text("1,200")
    expect(page.locator("#loss")).to_have_text("12.5 %")
    expect(page.locator("#explained")).to_have_text("50 %")
    expect(page.locator("#shape-of-model")).to_have_text("5 → 2")
    for tab, chart in (
        ("Components", "scree"),
        ("Vectors", "recent"),
        ("Over time", "loss"),
        ("Over time", "explained"),
    ):
        page.get_by_role("radio", name=tab).check()
        expect(page.locator(f"#{chart}-chart canvas")).to_be_visible()
    expect(page.locator("#components figure")).to_have_count(2)
    expect(page.locator("#loss-chart .u-legend")).to_contain_text("12.5 %")  # without a pointer
    expect(page.locator("#explained-chart .u-legend")).to_contain_text("50 %")


def test_throughput_lag_and_losses_of_partitions_over_time(models: Models, opened: Opened) -> None:
    now = round(time.time())
    few, many = ({p: (1 + p) / 100 for p in range(n)} for n in (2, 14))
    for version, at, losses in ((1000, now - 9000, few), (4000, now - 8990, many)):
        published = known(version, published_at=at)
        models.save(replace(published, last_timestamp_ms=1000 * (at - 5400), partition_losses=losses))
    page = opened()
    expect(page.locator("#rate-chart")).to_have_attribute("aria-label", re.compile("^Throughput: .*, Messages 300/s$"))
    expect(page.locator("#lag-chart")).to_have_attribute("aria-label", re.compile("^Lag: .*, Lag 90 min$"))
    expect(page.locator("#losses-which")).to_have_text("The 12 partitions where it is the greatest now.")
    expect(page.locator("#losses-chart .u-legend .u-series")).to_have_count(1 + 12)
    expect(page.locator("#losses-chart .u-legend")).to_contain_text("Partition 1314 %")
    page.locator("#rate-chart + details").locator("summary").click()
    expect(page.locator("#rate-chart + details td:last-child")).to_have_text(["300/s", "–"])  # the newest first


def test_figures_are_a_table_that_the_keyboard_opens(models: Models, opened: Opened) -> None:
    models.save(known(10, d=7000))
    page = opened("?tab=components")
    expect(page.locator("#scree-chart")).to_have_attribute(
        "aria-label", re.compile("^Scree: Component 1, share .* %, cumulative .* %$")
    )
    figures = page.get_by_role("region", name="Figures of Scree")
    expect(figures.locator("tr")).to_have_count(0)  # filled when it is opened
    page.locator("#scree-chart + details summary").focus()
    page.keyboard.press("Enter")
    expect(figures.locator("th")).to_have_text(["Component", "share", "cumulative"])
    expect(figures.locator("tbody tr")).to_have_count(2)
    page.locator("#components + details summary").click()
    components = page.get_by_role("region", name="Figures of Components")
    expect(components.locator("caption")).to_have_text("The 2,500 of 7,000 dimensions with the largest entries")
    largest = np.abs(known_model(10, d=7000).components).max(axis=0).argsort()[-2500:]
    assert components.locator("td:first-child").all_text_contents() == [str(j) for j in sorted(largest)]


def test_a_recent_vector_is_described_under_the_pointer_and_in_the_table(models: Models, opened: Opened) -> None:
    models.save(known(10))
    page = opened("?tab=vectors")
    status(page, "Serving version 10")
    vectors = np.array([[1.0, 2, 3, 4, 5], [0, 0, 0, 0, 1]])
    project(page, vectors.tolist())
    coordinates, residual = known_model(10).project(vectors)
    expect(page.locator("#recent-chart")).to_have_attribute(
        "aria-label", re.compile("^Recent vectors: 2 points; newest:")
    )
    page.locator(".stack + details summary").click()
    expect(page.locator(".stack + details td:first-child")).to_have_text(["2", "1"])
    shown = page.locator(".stack + details tbody tr").last.locator("td").all_text_contents()
    np.testing.assert_allclose([float(cell) for cell in shown[2:5]], [*coordinates[0], residual[0]], rtol=1e-3)
    tip, area = page.locator(".tip"), page.locator("#recent-chart .u-over")
    expect(tip).to_be_hidden()
    right, (width, height) = (
        int(coordinates[:, 0].argmax()),
        area.evaluate("each => [each.clientWidth, each.clientHeight]"),
    )
    upper = coordinates[right, 1] == coordinates[:, 1].max()
    margin = 0.06 / 1.12  # of the axes, beyond the outermost points
    area.hover(position={"x": width * (1 - margin), "y": height * (margin if upper else 1 - margin)})
    expect(tip).to_contain_text(re.compile(rf"vector {right + 1}, projected \d\d:\d\d:\d\d"))
    expect(tip).to_contain_text(f"residual {float(f'{residual[right]:.4g}'):g}, p –")


def test_other_topics_of_the_store_can_be_shown(store: DirectoryStore, models: Models, opened: Opened) -> None:
    models.save(known(10))
    page = opened()
    status(page, "Serving version 10")
    expect(page.get_by_label("Topic")).to_be_hidden()
    other = Models(store, "orders")
    for version in (7, 8):
        other.save(replace(known(version), topic="orders"))
    page.reload()
    page.get_by_label("Topic").select_option("orders")
    status(page, f"Newest version 8; this sidecar serves {TOPIC}")
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
    status(page, "Showing the earlier version 7; the newest is 8")
    other.save(replace(known(9), topic="orders"))
    status(page, "the newest is 9")
    page.get_by_label("Topic").select_option(TOPIC)
    status(page, "Serving version 10")
    expect(page.get_by_role("radio", name="Vectors")).to_be_visible()


def test_labels_of_an_axis_differ(models: Models, opened: Opened) -> None:
    models.save(known(10))
    page = opened()
    call = "([name, ...given]) => import('/page/format.js').then((format) => format[name](...given))"
    assert page.evaluate(call, ["percents", [0.0154, 0.01541], 1e-5]) == ["1.540 %", "1.541 %"]
    assert page.evaluate(call, ["percents", [0, 0.25, 0.5], 0.25]) == ["0 %", "25 %", "50 %"]
    assert page.evaluate(call, ["percents", [0.025, 0.05], 0.025]) == ["2.5 %", "5.0 %"]
    assert page.evaluate(call, ["spans", [0, 5400, 10800]]) == ["0 h", "1.5 h", "3 h"]
    days = [text.count("\n") for text in page.evaluate(call, ["moments", [0, 3600, 48 * 3600]])]
    assert days == [1, 0, 1]


def test_shows_the_sampling_error_if_it_is_known(models: Models, opened: Opened) -> None:
    models.save(known(10))
    page = opened("?tab=components")
    status(page, "Serving version 10")
    expect(page.locator("#errors")).to_be_hidden()
    models.save(replace(known(20), subspace_error=0.04321, axis_errors=[0.01, np.pi / 2]))
    expected = "Sampling error, estimated: 0.04321 of 2 for the plane of all components; 0.57° to 90° for the axes."
    expect(page.locator("#errors")).to_have_text(expected)
    expect(page.locator("#components figure").first).to_contain_text("± 0.57°")
    for shape in ("", "1×5"):  # strips, pictures
        page.locator("#shape").fill(shape)
        page.locator("#shape").press("Enter")
        expect(page.locator("#components.pictures")).to_have_count(1 if shape else 0)
        overlapping = "captions => captions.filter(each => each.scrollWidth > each.clientWidth).length"
        assert page.locator("#components figcaption").evaluate_all(overlapping) == 0


def test_a_published_model_appears_without_a_reload(models: Models, opened: Opened) -> None:
    models.save(known(10))
    page = opened()
    status(page, "Serving version 10")
    models.save(replace(known(20), loss_ewma=0.5))
    status(page, "Serving version 20")
    expect(page.locator("#slider-value")).to_contain_text("20 (2 of 2), published")
    expect(page.locator("#loss-chart .u-legend")).to_contain_text("50 %")


def test_shows_that_there_is_no_model_and_then_the_first(store: DirectoryStore, models: Models, opened: Opened) -> None:
    page = opened()
    expect(page.get_by_role("heading", name="No model yet")).to_be_visible()
    status(page, "there is no store at")
    store.root.mkdir()
    status(page, "no model has been published yet")
    expect(page.locator("#model")).to_be_hidden()
    models.save(known(10))
    status(page, "Serving version 10")
    expect(page.get_by_role("heading", name="No model yet")).to_be_hidden()


def test_shows_when_the_sidecar_is_down_and_up_again(browser: Browser, models: Models, store: DirectoryStore) -> None:
    models.save(known(10))
    with browser.new_context() as context:
        page = context.new_page()
        with SidecarProcess(store.root) as process:
            url = process.url()
            page.goto(url)
            status(page, "Serving version 10")
        status(page, "The sidecar has not responded since")
        expect(page.locator("#version")).to_have_text("10")
        page.get_by_role("radio", name="Vectors").check()
        page.locator("#vector").fill("1 2 3 4 5")
        page.get_by_role("button", name="Project").click()
        expect(page.locator("#try-message")).to_have_text("the sidecar does not respond")
        with SidecarProcess(store.root, port=int(url.rpartition(":")[2])) as process:
            process.url()
            status(page, "Serving version 10")


def test_shows_why_the_sidecar_is_not_ready(page: Page, models: Models, store: DirectoryStore) -> None:
    models.save(known(10, published_at=1e9))
    with SidecarProcess(store.root, model_max_age_s=60) as process:
        page.goto(process.url())
        status(page, "Not ready: the newest model was published")
        page.goto("about:blank")


def test_the_slider_selects_earlier_versions(models: Models, opened: Opened) -> None:
    for version in (10, 20, 30):
        models.save(known(version))
    page = opened()
    status(page, "Serving version 30")
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    status(page, "Showing the earlier version 20; the newest is 30")
    expect(page.locator("#version")).to_have_text("20")
    expect(page.get_by_role("button", name="Follow the newest")).to_have_attribute("aria-pressed", "false")

    models.save(known(40))
    status(page, "the newest is 40")
    expect(page.locator("#version")).to_have_text("20")

    page.get_by_role("button", name="Follow the newest").click()
    status(page, "Serving version 40")


def test_a_pasted_vector_is_projected_by_the_selected_version(models: Models, opened: Opened) -> None:
    for version in (10, 20):
        models.save(known(version))
    page = opened("?tab=vectors")
    status(page, "Serving version 20")
    vector = [0.5, -1.0, 2.0, 3.25, 0.0]
    request = json.dumps({"vectors": [vector]})
    for text, version in ((json.dumps(vector), 20), ("0.5 -1; 2,\n3.25 0", 10), (request, 10)):
        if version == 10:
            page.locator("#slider").fill("0")
            status(page, "Showing the earlier version 10")
        page.locator("#vector").fill(text)
        page.get_by_role("button", name="Project").click()
        expect(page.locator("#try-summary")).to_contain_text(f"Model version {version}.")
        coordinates, residual = known_model(version).project(np.array([vector]))
        shown = page.locator("#coordinates td:nth-child(2)").all_text_contents()
        np.testing.assert_allclose([float(cell) for cell in shown], coordinates[0], rtol=1e-3)
        residual_text = re.search(r"Residual (\S+):", page.locator("#try-summary").inner_text())
        assert residual_text is not None
        np.testing.assert_allclose(float(residual_text[1]), residual[0], rtol=1e-3)
    expect(page.locator("#try-strips figure")).to_have_count(3)
    expect(page.locator("#recent-empty")).to_be_hidden()


def test_errors_in_a_vector_are_shown_in_a_sentence(browser: Browser, models: Models, sidecar: str) -> None:
    models.save(known(10))
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{sidecar}/?tab=vectors")
        for text, says in {
            "": "enter a vector",
            "1, two, 3": "number 2, “two”, is not a number",
            "[1, 2": "this is not JSON",
            "[[1,2,3,4,5],[1,2,3,4,5]]": "there are 2 vectors: enter only one",
            "{}": "a vector is a list of numbers",
            "1 2 3": "5",  # the sidecar's own sentence names the right length
            '[1, 2, 3, 4, "5"]': "must be a number",
        }.items():
            page.locator("#vector").fill(text)
            page.get_by_role("button", name="Project").click()
            expect(page.locator("#try-message")).to_contain_text(says)
            expect(page.locator("#try-answer")).to_be_hidden()


def test_components_are_pictures_if_a_shape_is_entered(models: Models, opened: Opened) -> None:
    models.save(known(10, d=12))
    page = opened("?tab=components")
    canvas = page.locator("#components canvas").first
    expect(canvas).to_have_attribute("width", "12")
    page.get_by_label("Show vectors as pictures of").fill("3×4")
    page.keyboard.press("Enter")
    expect(canvas).to_have_attribute("width", "4")
    expect(canvas).to_have_attribute("height", "3")
    assert "shape=3" in page.url
    page.reload()
    expect(canvas).to_have_attribute("height", "3")

    page.get_by_label("Show vectors as pictures of").fill("5x5")
    page.keyboard.press("Enter")
    expect(page.locator("#shape-message")).to_have_text("5×5 are 25 numbers, the vectors have 12")
    expect(canvas).to_have_attribute("height", "1")
    page.get_by_label("Show vectors as pictures of").fill("2×2×3")
    page.keyboard.press("Enter")
    expect(canvas).to_have_attribute("width", "2")


def test_recent_vectors_along_any_two_components(models: Models, opened: Opened) -> None:
    models.save(known(10, k=3))
    page = opened("?tab=vectors")
    status(page, "Serving version 10")
    expect(page.locator("#recent-empty")).to_be_visible()
    project(page, [[1, 2, 3, 4, 5], [0, 0, 0, 0, 1]])
    expect(page.locator("#recent-empty")).to_be_hidden()
    with page.expect_response(re.compile(r"v1/page/recent\?version=10&x=3&y=1")):
        page.get_by_label("Component of the horizontal axis").select_option("3")
        page.get_by_label("Component of the vertical axis").select_option("1")


def test_shows_how_unusual_recent_vectors_are(models: Models, opened: Opened) -> None:
    model = known_model(10)
    past = scoring.score(model, np.random.default_rng(0).normal(size=(999, 5)))
    calibration = Calibration.empty().with_scores(past, model.noise_variance)
    models.save(replace(known(10), calibration=calibration))
    page = opened("?tab=vectors")
    status(page, "Serving version 10")
    expect(page.locator("#unusual")).to_be_hidden()
    odd = model.mean + np.array([0, 0, 50, 0, 0])
    vectors = np.vstack([odd, np.eye(5)]).tolist()
    project(page, vectors)
    expect(page.locator("#p-chart canvas")).to_be_visible()
    expect(page.locator("#worst tr")).to_have_count(5)
    expect(page.locator("#worst tr").first).to_contain_text("0.001")
    expect(page.locator("#worst tr").first.locator("td").last).to_contain_text("2 (+")


def report_member(store: DirectoryStore, name: str, silent_s: float, lags: dict[str, int], **transform: Any) -> None:
    """Write the report of a member of transform."""
    none = {"model_version": None, "awaits": None, "written": 0, "rejected": 0, "committed_at": None}
    status = ProcessStatus(
        name=name, state="transforming" if lags else "starting", trouble=None, started_at=1.0,
        updated_at=time.time() - silent_s, messages_per_second=2.5,
        partitions={p: PartitionStatus(position=1, lag=lag, learned=None, rejected=None, loss_ewma=None)
                    for p, lag in lags.items()},
        transform=TransformStatus(output_topic="<i>out</i>", **none | transform),
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(status)


def test_shows_what_members_of_transform_write_and_wait_for(store: DirectoryStore, opened: Opened) -> None:
    store.root.mkdir()
    at = time.time() - 200
    report_member(
        store, "busy", 0, {"0": 1_000, "2": 234}, model_version=1_200, written=54_321, rejected=3, committed_at=at
    )
    report_member(store, "dead", 100, {"1": 7}, model_version=1_100, written=1)
    report_member(store, "new", 0, {}, awaits="no model has been published yet")
    page = opened()
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


def test_fits_a_phone_in_the_dark(browser: Browser, models: Models, sidecar: str) -> None:
    models.save(known(123_456_789, d=784, k=20))
    with browser.new_context(
        viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True, is_mobile=True
    ) as context:
        page = context.new_page()
        complaints = Complaints(page)
        page.goto(sidecar)
        status(page, "Serving version 123,456,789")
        for tab in TABS:
            page.get_by_role("radio", name=tab).check()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        expect(page.locator("#components figure")).to_have_count(20)
        red, green, blue = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
        assert max(map(int, (red, green, blue))) < 64
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != f"rgb({red}, {green}, {blue})"
        page.get_by_role("radio", name="Components").check()
        expect(page.locator("#scree-chart canvas")).to_be_visible()
        assert complaints.all == []


def test_axe_finds_nothing(browser: Browser, models: Models, store: DirectoryStore, sidecar: str) -> None:
    for version in (10, 20):
        calibration = Calibration.empty().with_scores(scoring.score(known_model(version), np.eye(5)), 1.0)
        models.save(replace(known(version), calibration=calibration, partition_losses={0: 0.1, 1: 0.2}))
    Models(store, "orders").save(known(10))
    for name, silent_s in (("busy", 0), ("ended", 100)):
        report_member(store, name, silent_s, {"0": 1_000})
    for width in (1440, 390):
        with browser.new_context(viewport={"width": width, "height": 900}) as context:
            page = context.new_page()
            complaints = Complaints(page)
            page.goto(f"{sidecar}/?tab=vectors&with=10")
            for button in ("Fill in an example", "Project"):
                page.get_by_role("button", name=button).click()
                expect(page.locator("#try-message" if button != "Project" else "#try-summary")).not_to_be_empty()
            for tab, shown in TABS.items():
                page.get_by_role("radio", name=tab).check()
                expect(page.locator(shown).first).to_be_visible()
                for summary in page.locator(".panel:not([hidden]) summary:visible").all():
                    summary.click()
                for scheme in ("light", "dark"):
                    page.emulate_media(color_scheme=scheme)
                    result = Axe().run(page)
                    assert result.violations_count == 0, result.generate_report()
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert complaints.all == []


def test_everything_can_be_reached_by_the_keyboard(models: Models, opened: Opened) -> None:
    for version in (10, 20):
        models.save(known(version))
    page = opened()
    status(page, "Serving version 20")
    active = "(({id, name, className}) => id || name || className)(document.activeElement)"

    def reach(*names: str) -> None:
        """Press Tab until the last of these has the focus; the others have had it before, in this order."""
        reached: list[str] = []
        while not reached or reached[-1] != names[-1]:
            assert len(reached) < 30
            page.keyboard.press("Tab")
            reached.append(page.evaluate(active))
        assert [name for name in reached if name in names] == [*names]

    reach("skip", "slider", "follow", "tab", "range", "log")
    for tab, names in {
        "Components": ["other", "shape"], "Vectors": ["recent-x", "recent-y", "colour", "vector", "example"],
        "Workers": ["scroll"],
    }.items():  # fmt: skip
        page.locator("[name=tab]:checked").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("radio", name=tab)).to_be_focused()
        expect(page.locator(f"#{tab.lower()}-panel")).to_be_visible()
        reach(*names)


def test_inline_scripts_are_blocked(models: Models, sidecar: str, browser: Browser) -> None:
    models.save(known(10))
    with browser.new_context() as context:
        page = context.new_page()
        complaints = Complaints(page)
        page.goto(sidecar)
        status(page, "Serving version 10")
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'evil = 1'}))")
        assert page.evaluate("window.evil") is None
        assert any("Content Security Policy" in complaint for complaint in complaints.all)


def test_works_behind_a_prefix(page: Page, models: Models, sidecar: str) -> None:
    models.save(known(10))

    def forward(route) -> None:  # type: ignore[no-untyped-def]
        route.fulfill(response=route.fetch(url=route.request.url.replace("/pca/", "/")))

    page.route("**/*", lambda route: route.abort())  # nothing else is there
    page.route("**/pca/**", forward)  # tried first
    page.goto(f"{sidecar}/pca/")
    status(page, "Serving version 10")
    page.unroute_all(behavior="wait")


def test_the_page_asks_for_a_token(
    models: Models, store: DirectoryStore, tmp_path: Path, context: BrowserContext
) -> None:
    models.save(known(10))
    (tmp_path / "tokens").write_text(line("read", "ada"))
    page = context.new_page()
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept("ada" if asked[1:] else "wrong")))
    with SidecarProcess(store.root, tokens_file=str(tmp_path / "tokens")) as process:
        page.goto(process.url())
        status(page, "Serving version 10")
        page.reload()
        status(page, "Serving version 10")
        with page.expect_download() as saved:
            page.get_by_role("link", name="Model as JSON").click()
        assert saved.value.suggested_filename == "model.json"
        assert json.loads(saved.value.path().read_bytes())["version"] == 10
        page.get_by_role("link", name="Metrics").click()
        status(page, "this token may not do that: it lacks the scope metrics")
    assert asked == ["A token for this sidecar:"] * 2


def published_ago(models: Models, *seconds: float) -> None:
    """Save a version for each, 10, 20, …, published so many seconds ago."""
    for i, ago in enumerate(seconds):
        losses = {0: 0.01 * (1 + i), 1: 0.02}
        models.save(replace(known(10 * (1 + i), published_at=time.time() - ago), partition_losses=losses))


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
    assert box is not None
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


def test_a_range_without_versions_is_empty(models: Models, opened: Opened) -> None:
    published_ago(models, 7300, 7200)
    page = opened("?range=900")
    status(page, "Serving version 20")
    expect(page.locator("#loss-chart")).to_have_attribute("aria-label", "Loss: Published –, Loss –")
    page.get_by_role("radio", name="All").check()
    expect(page.locator("#loss-chart")).to_have_attribute("aria-label", re.compile("Loss 12.5 %$"))


def test_losses_on_a_log_scale(models: Models, opened: Opened) -> None:
    now = time.time()
    for i, loss in enumerate((0.5, 0.05, 0.005, 0.0)):  # zero has no logarithm
        models.save(
            replace(known(10 + i, published_at=now - 100 + i), loss_ewma=loss, partition_losses={0: loss, 1: 1.0})
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
            assert box is not None
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


def test_recent_vectors_are_coloured_by_age_or_p(models: Models, opened: Opened) -> None:
    model = known_model(10)
    models.save(known(10))
    page = opened("?tab=vectors&colour=p")
    status(page, "Serving version 10")

    def dated(route) -> None:  # type: ignore[no-untyped-def]
        content = route.fetch().json()
        content["at"] = [time.time() - age for age, _ in zip((900, 0, 0), content["at"], strict=False)]
        route.fulfill(json=content)

    page.route("**/v1/page/recent?*", dated)
    odd = 50 * np.eye(5)[2]
    project(page, (model.mean + np.array([0 * odd, odd, -odd])).tolist())
    colour, legend = page.get_by_label("coloured by"), page.locator("#recent-chart .u-legend")

    def shows(classes: str, *drawn: bool) -> None:
        """The names of the classes, and which of their colours are on the canvas."""
        expect(legend).to_have_text(f"{classes}yours")
        expect(page.locator("#recent-chart")).to_have_attribute("aria-label", re.compile("3 points"))
        assert page.locator("#recent-chart canvas").evaluate(PAINTED) == [*drawn]

    ages = "olderup to 10 minup to 1 minup to 10 s"
    shows(ages, True, False, False, True)
    expect(colour.locator("option[value=p]")).to_be_disabled()  # without past scores
    past = scoring.score(model, np.random.default_rng(0).normal(size=(999, 5)))
    models.save(
        replace(known(11), model=model, calibration=Calibration.empty().with_scores(past, model.noise_variance))
    )
    status(page, "Serving version 11")
    expect(colour.locator("option[value=p]")).to_be_enabled()
    shows("p above 0.1p up to 0.1p up to 0.01p up to 0.001", True, False, False, True)
    colour.select_option("age")
    shows(ages, True, False, False, True)
    assert "colour=age" in page.url
    page.unroute_all(behavior="wait")


# Whether a canvas has the colour of each class of points.
PAINTED = """canvas => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const style = getComputedStyle(document.documentElement);
    return [0, 1, 2, 3].map((kind) => {
        const hex = style.getPropertyValue(`--class-${kind}`).trim();
        const colour = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
        for (let i = 0; i < data.length; i += 4) if (colour.every((value, c) => data[i + c] === value)) return true;
        return false;
    });
}"""


def test_two_versions_are_compared(models: Models, opened: Opened) -> None:
    for version in (10, 20, 30):
        models.save(known(version, d=12, k=3))
    page = opened("?tab=components&shape=3×4")
    status(page, "Serving version 30")
    expect(page.locator("#other-value")).to_have_text("none")
    expect(page.locator("#angles")).to_be_hidden()
    expect(page.locator("#components figure")).to_have_count(3)
    page.get_by_label("Compare with").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#other-value")).to_contain_text("10 (1 of 3), published")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#other-value")).to_contain_text("20 (2 of 3), published")
    shown, other = known_model(30, d=12, k=3), known_model(20, d=12, k=3)
    expect(page.locator("#compared")).to_have_text("In version 20, all explain 50 %.")
    for chart in ("scree", "angles"):
        page.locator(f"#{chart}-chart + details summary").click()

    def column(chart: str, i: int) -> list[float]:
        cells = page.locator(f"#{chart}-chart + details td:nth-child({i})").all_text_contents()
        return [float(cell.rstrip(" %°")) for cell in cells]

    expect(page.locator("#scree-chart + details th").last).to_have_text("version 20")
    np.testing.assert_allclose(column("scree", 2), 100 * shown.explained_variance_ratio, rtol=1e-2)
    np.testing.assert_allclose(column("scree", 4), 100 * other.explained_variance_ratio, rtol=1e-2)
    cosines = np.abs((shown.components * other.components).sum(axis=1))
    np.testing.assert_allclose(column("angles", 2), np.degrees(np.arccos(cosines)), rtol=0.06)  # two digits
    principal = np.sort(subspace_angles(shown.components.T, other.components.T))
    np.testing.assert_allclose(column("angles", 3), np.degrees(principal), rtol=0.06)
    expect(page.locator("#components figure")).to_have_count(6)
    expect(page.locator("#components figcaption").nth(1)).to_contain_text("1 · compared, ")
    expect(page.locator("#components canvas").nth(1)).to_have_attribute("width", "4")

    models.save(known(40, d=12, k=3))  # the newest is followed, the other remains
    status(page, "Serving version 40")
    expect(page.locator("#other-value")).to_contain_text("20 (2 of 4), published")
    page.locator("#other").fill("-1")
    expect(page.locator("#components figure")).to_have_count(3)
    assert "with" not in page.url


def test_principal_angles(opened: Opened) -> None:
    """Also tiny ones and right ones, and where both subspaces are the same."""
    page = opened()
    chance = np.random.default_rng(0)
    angles = np.array([0.0, 1e-6, 0.3, 1.2, np.pi / 2])
    basis = np.linalg.qr(chance.normal(size=(30, 10)))[0].T
    one = basis[:5]
    other = np.cos(angles)[:, None] * one + np.sin(angles)[:, None] * basis[5:]
    turned = np.linalg.qr(chance.normal(size=(5, 5)))[0] @ other
    call = "lists => import('/page/angles.js').then(({principalAngles}) => principalAngles(...lists))"
    np.testing.assert_allclose(page.evaluate(call, [one.tolist(), turned.tolist()]), angles, atol=1e-7)
    np.testing.assert_allclose(page.evaluate(call, [one.tolist(), one.tolist()]), np.zeros(5), atol=1e-7)


def test_a_link_keeps_what_is_seen(
    store: DirectoryStore, models: Models, opened: Opened, context: BrowserContext
) -> None:
    orders = Models(store, "orders")
    for version in (10, 20, 30):
        models.save(known(version, k=3))
        orders.save(replace(known(version + 1), topic="orders"))
    page = opened()
    status(page, "Serving version 30")
    page.get_by_label("Log scale for losses").check()
    page.get_by_role("radio", name="Last hour").check()
    page.locator("#slider").fill("1")
    status(page, "Showing the earlier version 20")
    page.get_by_role("radio", name="Components").check()
    page.get_by_label("Compare with").fill("0")
    expect(page.locator("#other-value")).to_contain_text("10 (1 of 3)")
    page.get_by_role("radio", name="Vectors").check()
    page.get_by_label("Component of the horizontal axis").select_option("3")
    page.get_by_label("Component of the vertical axis").select_option("1")

    linked = context.new_page()
    linked.goto(page.url)
    status(linked, "Showing the earlier version 20")
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
    status(linked, f"Newest version 31; this sidecar serves {TOPIC}")
    expect(linked.get_by_label("Log scale for losses")).to_be_checked()
    page.goto(page.url.replace("version=20", "version=15"))  # no longer in the store
    status(page, "Serving version 30")
    expect(page.get_by_role("button", name="Follow the newest")).to_have_attribute("aria-pressed", "true")


def test_members_that_ended_are_folded(store: DirectoryStore, opened: Opened) -> None:
    store.root.mkdir()
    for name, silent_s, lags in (
        ("busy", 0, {"0": 1}),
        ("crashed", 100, {"1": 1}),
        ("replaced", 100, {"0": 1}),
        ("just", 50, {}),
    ):
        report_member(store, name, silent_s, lags)
    page = opened("?tab=workers")
    expect(page.locator("#transform strong")).to_have_text(["busy", "crashed", "just"])  # nobody took over partition 1
    expect(page.locator("#members tr")).to_have_count(3)
    ended = page.locator("#transform-ended")
    expect(ended.locator("summary")).to_have_text("1 ended more than a minute ago")
    expect(ended.locator("p")).to_be_hidden()
    ended.locator("summary").click()
    expect(ended.locator("p")).to_contain_text("replaced silent, last report")
    report_member(store, "busy", 0, {"0": 1, "1": 1})
    expect(ended.locator("summary")).to_have_text("2 ended more than a minute ago")
    expect(ended.locator("p").first).to_be_visible()  # it stays open
    expect(page.locator("#workers-ended")).to_be_hidden()

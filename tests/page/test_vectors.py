"""Vectors on the page, in a real Chromium: a pasted one, and the most recent ones."""

import itertools
import json
import re
import time
from dataclasses import replace
from urllib.parse import urljoin

import numpy as np
from playwright.sync_api import Browser, Page, expect

from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.example_models import example_model, numbered, standardised, with_past_scores
from tests.page.browser import OpenPage, check_with_axe, project, wait_for_status
from tests.sidecar.process import SidecarProcess
from tests.waiting import wait_until


def test_a_recent_vector_is_described_under_the_pointer_and_in_the_table(open_page: OpenPage) -> None:
    page = open_page("?tab=vectors", numbered(10))
    expect(page.locator("#recent-empty")).to_be_visible()
    vectors = np.array([[1.0, 2, 3, 4, 5], [0, 0, 0, 0, 1]])
    project(page, vectors.tolist())
    projected = example_model(10).project(vectors)
    coordinates, residual = projected.coordinates, projected.residual
    expect(page.locator("#recent-chart")).to_have_attribute(
        "aria-label", re.compile("^Recent vectors: 2 points; newest:")
    )
    page.locator(".stack + details summary").click()
    expect(page.locator(".stack + details td:first-child")).to_have_text(["2", "1"])
    shown = page.locator(".stack + details tbody tr").last.locator("td").all_text_contents()
    np.testing.assert_allclose([float(cell) for cell in shown[2:5]], [*coordinates[0], residual[0]], rtol=1e-3)
    tip, area = page.locator("#recent-chart .tip"), page.locator("#recent-chart .u-over")
    expect(tip).to_be_hidden()
    right = int(coordinates[:, 0].argmax())
    width, height = area.evaluate("({clientWidth, clientHeight}) => [clientWidth, clientHeight]")
    upper = coordinates[right, 1] == coordinates[:, 1].max()
    margin = 0.06 / 1.12  # of the axes, beyond the outermost points
    area.hover(position={"x": width * (1 - margin), "y": height * (margin if upper else 1 - margin)})
    expect(tip).to_contain_text(re.compile(rf"vector {right + 1}, projected \d\d:\d\d:\d\d"))
    expect(tip).to_contain_text(f"residual {float(f'{residual[right]:.4g}'):g}, p –")


def test_a_pasted_vector_is_projected_by_the_selected_version(open_page: OpenPage) -> None:
    page = open_page("?tab=vectors", numbered(10), numbered(20))
    vector = [0.5, -1.0, 2.0, 3.25, 0.0]
    request = json.dumps({"vectors": [vector]})
    for text, version in ((json.dumps(vector), 20), ("0.5 -1; 2,\n3.25 0", 10), (request, 10)):
        if version == 10:
            page.locator("#slider").fill("0")
            wait_for_status(page, "Showing the earlier version 10")
        page.locator("#vector").fill(text)
        page.get_by_role("button", name="Project").click()
        expect(page.locator("#try-summary")).to_contain_text(f"Model version {version}.")
        projected = example_model(version).project(np.array([vector]))
        shown = page.locator("#coordinates td:nth-child(2)").all_text_contents()
        np.testing.assert_allclose([float(cell) for cell in shown], projected.coordinates[0], rtol=1e-3)
        residual_text = re.search(r"Residual (\S+):", page.locator("#try-summary").inner_text())
        np.testing.assert_allclose(float(residual_text[1]), projected.residual[0], rtol=1e-3)
    expect(page.locator("#try-strips figure")).to_have_count(3)
    expect(page.locator("#recent-empty")).to_be_hidden()


def test_errors_in_a_vector_are_shown_in_a_sentence(browser: Browser, models: Models, sidecar: str) -> None:
    models.save(numbered(10))
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
        models.save(replace(numbered(11), names=["temp", "hum", "press", "flow", "rpm"]))
        wait_for_status(page, "Serving version 11")
        page.locator("#vector").fill('{"temp": 1}')
        page.get_by_role("button", name="Project").click()
        expect(page.locator("#try-message")).to_contain_text("records[0] has no 'hum'")


def test_dimensions_are_called_by_their_names(open_page: OpenPage) -> None:
    names = ["temp", "hum", "<img src=x onerror=alert(1)>", "flow", "v" * 255]
    published = replace(numbered(10), names=names)
    past = with_past_scores(published, np.random.default_rng(0).normal(size=(999, 5)))
    page = open_page("?tab=vectors", past)
    project(page, (example_model(10).mean + np.diag([0, 0, 50.0, 0, 40])[[4, 2]]).tolist())
    worst = page.locator("#worst td:last-child")
    expect(worst).to_have_count(2)
    expect(worst.nth(0)).to_contain_text(f"{names[2]} (")
    expect(worst.nth(1)).to_contain_text(f"{'v' * 40}… (")
    page.locator("#vector").fill(json.dumps({"id": "x", **dict(zip(names, range(5), strict=True))}))
    page.get_by_role("button", name="Project").click()
    lines = page.locator("#try-strips figure").first.locator("li")
    shown = sorted(["temp0", "hum1", f"{names[2]}2", "flow3", f"{'v' * 40}…4"])
    wait_until(lambda: sorted(lines.all_text_contents()) == shown)  # until then the vector before is shown
    page.locator("#try-strips + details summary").click()
    cells = page.get_by_role("region", name="Figures of Try a vector").locator("td:first-child")
    expect(cells).to_have_text(["temp", "hum", names[2], "flow", "v" * 40 + "…"])


def test_an_example_is_a_record_and_is_drawn_in_standard_deviations(models: Models, open_page: OpenPage) -> None:
    names = ["temp", "hum", "press", "flow", "rpm"]
    published = standardised(replace(numbered(10), names=names))
    page = open_page("?tab=vectors", published)
    page.get_by_role("button", name="Fill in an example").click()
    expect(page.locator("#try-message")).to_have_text("the mean plus noise of the model's variances")
    record = json.loads(page.locator("#vector").input_value())
    assert list(record) == names
    with page.expect_request("**/v1/project") as sent:
        page.get_by_role("button", name="Project").click()
    assert sent.value.post_data_json["records"] == [record]
    expect(page.locator("#try-units")).to_be_visible()
    expect(page.locator("#try-p")).to_have_text("p is not known: the model has no past scores yet.")
    lines = page.locator("#try-strips figure").first.locator("li")
    shown = {line.locator("span").first.inner_text(): line.locator(".number").inner_text() for line in lines.all()}
    expected = published.model.centre(np.array([list(record.values())]))[0]
    assert shown.keys() == record.keys()
    np.testing.assert_allclose([float(shown[name]) for name in names], expected, rtol=1e-3, atol=1e-4)

    past = np.random.default_rng(0).normal(size=(999, 5))
    models.save(with_past_scores(replace(numbered(11), names=names), past))
    wait_for_status(page, "Serving version 11")  # the record is projected again
    expect(page.locator("#try-p")).to_have_text(re.compile(r"^p [\d.]+: the share of the stream's messages"))
    expect(page.locator("#try-units")).to_be_hidden()


def test_a_record_that_lacks_an_entry_is_drawn_as_the_model_fills_it(open_page: OpenPage) -> None:
    names = ["temp", "hum", "press", "flow", "rpm"]
    page = open_page("?tab=vectors", replace(numbered(10), names=names, settings={"missing": "impute"}))
    page.locator("#vector").fill('{"temp": 1, "hum": 2, "press": 0, "flow": 1}')
    page.get_by_role("button", name="Project").click()
    difference = page.locator("#try-strips figure").last.locator("li")
    expect(difference).to_have_count(5)
    expect(difference.last).to_have_text("rpm0")


def test_the_most_unusual_vectors_have_the_labels_of_their_records(
    page: Page, models: Models, store: DirectoryStore
) -> None:
    names = ["temp", "hum", "press", "flow", "rpm"]
    past = np.random.default_rng(0).normal(size=(999, 5))
    models.save(with_past_scores(replace(numbered(10), names=names), past))
    with SidecarProcess(store.root, label="pump") as process:
        page.goto(f"{process.wait_for_url()}/?tab=vectors")
        wait_for_status(page, "Serving version 10")
        project(page, [[1.0, 2.0, 3.0, 4.0, 5.0]])
        expect(page.locator("#worst tr")).to_have_count(1)
        expect(page.get_by_role("columnheader", name="Record")).to_be_hidden()
        label = f"<b>{'p' * 61}"
        record = dict(zip(names, [90.0, 0.0, -50.0, 0.0, 0.0], strict=True))
        page.request.post(urljoin(page.url, "v1/project"), data={"records": [record | {"pump": label}]})
        expect(page.get_by_role("columnheader", name="Record")).to_be_visible()
        expect(page.locator("#worst td:nth-child(4)")).to_have_text([label, "–"])
        for width, scheme in itertools.product((1366, 390), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": 844})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            check_with_axe(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto("about:blank")


def test_on_a_phone_what_deviates_has_a_line_of_its_own(page: Page, models: Models, sidecar: str) -> None:
    names = ["vibration", "temperature", "pressure", "flow", "revolutions"]
    past = np.random.default_rng(0).normal(size=(999, 5))
    models.save(with_past_scores(replace(numbered(10), names=names), past))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{sidecar}/?tab=vectors")
    wait_for_status(page, "Serving version 10")
    project(page, [[9.0, 8.0, -7.0, 0.0, 0.0]])
    line = page.locator("#worst tr")
    expect(line).to_have_count(1)
    boxes = [cell.bounding_box() or {} for cell in line.locator("td").all()]
    assert all(boxes[-1]["y"] >= box["y"] + box["height"] - 1 for box in boxes[:-1])
    assert boxes[-1]["width"] > 0.95 * (line.bounding_box() or {})["width"]
    for part in line.locator(".whole").all():
        assert len(part.evaluate("part => [...part.getClientRects()]")) == 1


PAINTED = """drawn => {
    const canvas = document.querySelector("#recent-chart canvas");
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d"); // reading one often logs a warning
    copy.drawImage(canvas, 0, 0);
    const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
    const style = getComputedStyle(document.documentElement);
    return drawn.every((expected, kind) => {
        const hex = style.getPropertyValue(`--class-${kind}`).trim();
        const colour = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
        for (let i = 0; i < data.length; i += 4)
            if (colour.every((value, c) => data[i + c] === value)) return expected;
        return !expected;
    });
}"""


def test_recent_vectors_are_coloured_by_age_or_p(models: Models, open_page: OpenPage) -> None:
    model = example_model(10)
    page = open_page("?tab=vectors", numbered(10))

    def dated(route) -> None:  # type: ignore[no-untyped-def]
        content = route.fetch().json()
        content["at"] = [time.time() - age for age, _ in zip((900, 0, 0), content["at"], strict=False)]
        route.fulfill(json=content)

    page.route("**/v1/page/recent?*", dated)
    odd = 50 * np.eye(5)[2]
    project(page, (model.mean + np.array([0 * odd, 1.01 * odd, -odd])).tolist())
    colour, legend = page.get_by_label("coloured by"), page.locator("#recent-chart .u-legend")

    def shows(classes: str, *drawn: bool) -> None:
        """The names of the classes, and which of their colours are on the canvas.

        Waits for them: a request sent before the route was set is answered with the vectors' true times.
        """
        expect(legend).to_have_text(f"{classes}yours")
        expect(page.locator("#recent-chart")).to_have_attribute("aria-label", re.compile("3 points"))
        page.wait_for_function(PAINTED, arg=drawn, timeout=60_000)

    expect(page.locator("#unusual")).to_be_hidden()
    ages = "olderup to 10 minup to 1 minup to 10 s"
    shows(ages, True, False, False, True)
    expect(colour.locator("option[value=p]")).to_be_disabled()  # without past scores
    expect(colour).to_have_value("age")
    past = np.random.default_rng(0).normal(size=(999, 5))
    models.save(with_past_scores(replace(numbered(11), model=model), past))
    wait_for_status(page, "Serving version 11")
    expect(colour.locator("option[value=p]")).to_be_enabled()
    expect(colour).to_have_value("p")
    shows("p above 0.1p up to 0.1p up to 0.01p up to 0.001", True, False, False, True)
    expect(page.locator("#p-chart canvas")).to_be_visible()
    expect(page.locator("#worst tr")).to_have_count(3)
    expect(page.locator("#worst tr").first).to_contain_text("0.001")
    expect(page.locator("#worst tr").first.locator("td").last).to_contain_text("2 (+")
    colour.select_option("age")
    shows(ages, True, False, False, True)
    assert "colour=age" in page.url
    page.unroute_all(behavior="wait")

"""Vectors on the page, in a real Chromium: a pasted one, and the most recent ones."""

import json
import re
import time
from dataclasses import replace

import numpy as np
from playwright.sync_api import Browser, expect

from streampca.stores.models import Models
from tests.example_models import example_model, numbered, with_past_scores
from tests.page.browser import Opened, project, status


def test_a_recent_vector_is_described_under_the_pointer_and_in_the_table(opened: Opened) -> None:
    page = opened("?tab=vectors", numbered(10))
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
    tip, area = page.locator(".tip"), page.locator("#recent-chart .u-over")
    expect(tip).to_be_hidden()
    right = int(coordinates[:, 0].argmax())
    width, height = area.evaluate("({clientWidth, clientHeight}) => [clientWidth, clientHeight]")
    upper = coordinates[right, 1] == coordinates[:, 1].max()
    margin = 0.06 / 1.12  # of the axes, beyond the outermost points
    area.hover(position={"x": width * (1 - margin), "y": height * (margin if upper else 1 - margin)})
    expect(tip).to_contain_text(re.compile(rf"vector {right + 1}, projected \d\d:\d\d:\d\d"))
    expect(tip).to_contain_text(f"residual {float(f'{residual[right]:.4g}'):g}, p –")


def test_a_pasted_vector_is_projected_by_the_selected_version(opened: Opened) -> None:
    page = opened("?tab=vectors", numbered(10), numbered(20))
    vector = [0.5, -1.0, 2.0, 3.25, 0.0]
    request = json.dumps({"vectors": [vector]})
    for text, version in ((json.dumps(vector), 20), ("0.5 -1; 2,\n3.25 0", 10), (request, 10)):
        if version == 10:
            page.locator("#slider").fill("0")
            status(page, "Showing the earlier version 10")
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


def test_dimensions_are_called_by_their_names(opened: Opened) -> None:
    names = ["temp", "hum", "<img src=x onerror=alert(1)>", "flow", "v" * 255]
    published = replace(numbered(10), names=names)
    past = with_past_scores(published, np.random.default_rng(0).normal(size=(999, 5)))
    page = opened("?tab=vectors", past)
    project(page, (example_model(10).mean + np.diag([0, 0, 50.0, 0, 40])[[4, 2]]).tolist())
    worst = page.locator("#worst td:last-child")
    expect(worst).to_have_count(2)
    expect(worst.nth(0)).to_contain_text(f"{names[2]} (")
    expect(worst.nth(1)).to_contain_text(f"{'v' * 40}… (")
    page.locator("#vector").fill(json.dumps({"id": "x", **dict(zip(names, range(5), strict=True))}))
    page.get_by_role("button", name="Project").click()
    expect(page.locator("#try-strips canvas").first).to_have_attribute(
        "aria-label", re.compile(r"^Your vector; .*2 in <img src.* 3 in flow, 4 in v{40}…$")
    )
    page.locator("#try-strips + details summary").click()
    cells = page.get_by_role("region", name="Figures of Try a vector").locator("td:first-child")
    expect(cells).to_have_text(["temp", "hum", names[2], "flow", "v" * 40 + "…"])
    page.locator("#vector").fill('{"temp": 1}')
    page.get_by_role("button", name="Project").click()
    expect(page.locator("#try-message")).to_contain_text("the record has no hum")


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


def test_recent_vectors_are_coloured_by_age_or_p(models: Models, opened: Opened) -> None:
    model = example_model(10)
    page = opened("?tab=vectors&colour=p", numbered(10))

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
    past = np.random.default_rng(0).normal(size=(999, 5))
    models.save(with_past_scores(replace(numbered(11), model=model), past))
    status(page, "Serving version 11")
    expect(colour.locator("option[value=p]")).to_be_enabled()
    shows("p above 0.1p up to 0.1p up to 0.01p up to 0.001", True, False, False, True)
    expect(page.locator("#p-chart canvas")).to_be_visible()
    expect(page.locator("#worst tr")).to_have_count(3)
    expect(page.locator("#worst tr").first).to_contain_text("0.001")
    expect(page.locator("#worst tr").first.locator("td").last).to_contain_text("2 (+")
    colour.select_option("age")
    shows(ages, True, False, False, True)
    assert "colour=age" in page.url
    page.unroute_all(behavior="wait")

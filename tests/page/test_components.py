"""Components of one version, and of two that are compared, in a real Chromium."""

import io
import re
from dataclasses import replace

import numpy as np
from PIL import Image
from playwright.sync_api import expect
from scipy.linalg import subspace_angles

from streampca.stores.models import Models
from streampca.stores.pins import Pins
from tests.example_models import TOPIC, example_model, numbered
from tests.page.browser import OpenPage, save, wait_for_status


def test_figures_are_a_table_that_the_keyboard_opens(open_page: OpenPage) -> None:
    page = open_page("?tab=components", numbered(10, d=7000))
    expect(page.locator("#scree-chart")).to_have_attribute(
        "aria-label", re.compile("^Scree: Component 1, share .* %, cumulative .* %$")
    )
    figures = page.get_by_role("region", name="Figures of Scree")
    expect(figures.locator("tr")).to_have_count(0)  # filled when it is open_page
    page.locator("#scree-chart + details summary").focus()
    page.keyboard.press("Enter")
    expect(figures.locator("th")).to_have_text(["Component", "share", "cumulative"])
    expect(figures.locator("tbody tr")).to_have_count(2)
    page.locator("#components + details summary").click()
    components = page.get_by_role("region", name="Figures of Components")
    expect(components.locator("caption")).to_have_text("The 2,500 of 7,000 dimensions with the largest entries")
    axes = np.loadtxt(save(page, "CSV of Components")[1].decode().splitlines(), delimiter=",", skiprows=1)
    np.testing.assert_array_equal(axes[:, 1:], example_model(10, d=7000).components.T)
    largest = np.abs(example_model(10, d=7000).components).max(axis=0).argsort()[-2500:]
    assert components.locator("td:first-child").all_text_contents() == [str(j) for j in sorted(largest)]


def test_shows_sampling_error_and_drift_if_they_are_known(models: Models, open_page: OpenPage) -> None:
    page = open_page("?tab=components", numbered(10))
    expect(page.locator("#errors")).to_be_hidden()
    Pins(models.store, TOPIC).set("index", 10)
    models.save(replace(numbered(20), subspace_error=0.04321, axis_errors=[0.01, np.pi / 2]))
    expected = "Sampling error, estimated: 0.04321 of 2 for the plane of all components; 0.57° to 90° for the axes."
    expect(page.locator("#errors")).to_have_text(expected)
    moved = re.compile("^Turned by up to .*° since index, version 10, whose axes explain .* %.*variance: .* %\\.$")
    expect(page.locator("#drift")).to_have_text(moved)
    expect(page.locator("#components figure").first).to_contain_text("± 0.57°")
    for shape in ("", "1×5"):  # strips, pictures
        page.locator("#shape").fill(shape)
        page.locator("#shape").press("Enter")
        expect(page.locator("#components.pictures")).to_have_count(1 if shape else 0)
        overlapping = "captions => captions.filter(({scrollWidth, clientWidth}) => scrollWidth > clientWidth).length"
        assert page.locator("#components figcaption").evaluate_all(overlapping) == 0


def test_components_are_pictures_if_a_shape_is_entered(open_page: OpenPage) -> None:
    page = open_page("?tab=components", numbered(10, d=12))
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


def test_two_versions_are_compared(models: Models, open_page: OpenPage) -> None:
    page = open_page("?tab=components&shape=3×4", *(numbered(version, d=12, k=3) for version in (10, 20, 30)))
    expect(page.locator("#other-value")).to_have_text("none")
    expect(page.locator("#angles")).to_be_hidden()
    expect(page.locator("#components figure")).to_have_count(3)
    page.get_by_label("Compare with").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#other-value")).to_contain_text("10 (1 of 3), published")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#other-value")).to_contain_text("20 (2 of 3), published")
    shown, other = example_model(30, d=12, k=3), example_model(20, d=12, k=3)
    expect(page.locator("#compared")).to_have_text("In version 20, all explain 50 %.")
    for chart in ("angles", "scree"):  # the last one's table is waited for
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

    models.save(numbered(40, d=12, k=3))  # the newest is followed, the other remains
    wait_for_status(page, "Serving version 40")
    expect(page.locator("#other-value")).to_contain_text("20 (2 of 4), published")
    page.locator("#other").fill("-1")
    expect(page.locator("#components figure")).to_have_count(3)
    assert "with" not in page.url


def test_labels_of_an_axis_differ(open_page: OpenPage) -> None:
    page = open_page()
    call = "([name, ...values]) => import('/page/format.js').then((format) => format[name](...values))"
    assert page.evaluate(call, ["percents", [0.0154, 0.01541], 1e-5]) == ["1.540 %", "1.541 %"]
    assert page.evaluate(call, ["percents", [0, 0.25, 0.5], 0.25]) == ["0 %", "25 %", "50 %"]
    assert page.evaluate(call, ["percents", [0.025, 0.05], 0.025]) == ["2.5 %", "5.0 %"]
    assert page.evaluate(call, ["spans", [0, 5400, 10800]]) == ["0 h", "1.5 h", "3 h"]
    days = [text.count("\n") for text in page.evaluate(call, ["moments", [0, 1, 48 * 3600]])]
    assert days == [1, 0, 1]
    call = "ranges => import('/page/charts.js').then(({shares}) => ranges.map(([a, b]) => shares(null, a, b)))"
    np.testing.assert_allclose(  # also of tiny changes, of nearly all, of nothing, and of more than all
        page.evaluate(call, [[0.09996, 0.1], [0.999995, 1], [0, 0], [0.3, 0.7], [0.9, 1.2]]),
        [[0.09398, 0.10598], [0.9999375, 1], [0, 6e-5], [0.26, 0.74], [0.87, 1.23]],
    )


def test_up_to_40_names_stand_beside_bars_the_greatest_first(models: Models, open_page: OpenPage) -> None:
    names = [f"sensor {j}" for j in range(40)]
    page = open_page("?tab=components", replace(numbered(10, d=40), names=names))
    expect(page.locator("#components figure")).to_have_count(2)
    expect(page.locator("#components canvas")).to_have_count(0)
    for i, axis in enumerate(example_model(10, d=40).components):
        lines = page.locator("#components figure").nth(i).locator("li")
        shown = lines.locator("span:first-child:not(.bar *)").all_text_contents()
        assert shown == [names[j] for j in np.argsort(-np.abs(axis), kind="stable")]
        expect(lines.first.locator(".bar span")).to_have_class("plus" if axis[np.abs(axis).argmax()] > 0 else "minus")
    expect(page.get_by_text("more", exact=False).locator("visible=true")).to_have_count(0)
    _, picture = save(page, "PNG of Components")
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).reshape(-1, 3)
    for colour in ((0x1F, 0x5F, 0xBF), (0xC8, 0x10, 0x2E)):  # of bars to the left and to the right
        assert (pixels == colour).all(axis=1).sum() > 1000

    models.save(replace(numbered(20, d=41, k=17), names=[*names, "the last"]))
    wait_for_status(page, "Serving version 20")
    expect(page.locator("#components .bars")).to_have_count(0)
    expect(page.locator("#components canvas:visible")).to_have_count(16)
    page.get_by_text("1 more").click()
    expect(page.locator("#components canvas:visible")).to_have_count(17)
    models.save(replace(numbered(30, d=41, k=18), names=[*names, "the last"]))
    wait_for_status(page, "Serving version 30")
    expect(page.locator("#components canvas:visible")).to_have_count(18)  # it stays open
    strip = page.locator("#components canvas").first
    box = strip.bounding_box() or {}
    strip.hover(position={"x": box["width"] * 40.5 / 41, "y": box["height"] / 2})
    expect(page.locator(".beside-pointer:visible")).to_have_text(re.compile(r"^the last: -?[\d.]+"))
    page.get_by_role("heading", name="Components", exact=True).hover()
    expect(page.locator(".beside-pointer:visible")).to_have_count(0)


def test_a_pixel_of_a_picture_is_described_under_the_pointer(open_page: OpenPage) -> None:
    page = open_page("?tab=components&shape=2×2×3", numbered(10, d=12))
    picture = page.locator("#components canvas").first
    box = picture.bounding_box() or {}
    picture.hover(position={"x": box["width"] * 0.75, "y": box["height"] * 0.75})
    tip = page.locator(".beside-pointer:visible")
    expect(tip).to_have_text(re.compile("^dimension 9: .*, dimension 10: .*, dimension 11: .*$"))

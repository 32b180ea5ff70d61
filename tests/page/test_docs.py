"""The page at `/docs` in a real Chromium: its forms send requests that the served model answers."""

import json
from dataclasses import replace

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from streampca.stores.models import Models
from tests.example_models import numbered, standardised
from tests.page.browser import wait_for_status

NAMES = ["temp", "hum", "press", "flow", "rpm"]
POSTS = ["project", "reconstruct", "score", "infer", "infer_version", "invocations", "repository_index"]


@pytest.mark.parametrize("names", [None, NAMES])
def test_what_a_form_sends_at_first_is_answered(
    page: Page, models: Models, sidecar: str, names: list[str] | None
) -> None:
    models.save(standardised(replace(numbered(10), names=names)))
    page.goto(f"{sidecar}/docs")
    wait_for_status(page, "23 operations")
    for operation in POSTS:
        page.locator(f"#{operation} summary").click()
        form = page.get_by_role("form", name=f"Try {operation}", exact=True)
        if operation != "repository_index":  # it has no vectors
            expect(form.get_by_label("Body")).not_to_have_value(page.locator(f"#{operation} pre").first.inner_text())
        form.get_by_role("button", name="Send").click()
        expect(form.get_by_role("status")).to_contain_text("200 OK")
    for operation, field in {"score": "records", "invocations": "dataframe_records"}.items() if names else []:
        body = page.get_by_role("form", name=f"Try {operation}", exact=True).get_by_label("Body").input_value()
        assert list(json.loads(body)[field][0]) == NAMES


def test_a_form_without_a_model_has_the_described_body(context: BrowserContext, sidecar: str) -> None:
    page = context.new_page()  # whose log has the 503 of the answer
    page.goto(f"{sidecar}/docs")
    wait_for_status(page, "23 operations")
    with page.expect_response("**/v1/page/example"):
        page.locator("#project summary").click()
    body = page.get_by_role("form", name="Try project", exact=True).get_by_label("Body")
    expect(body).to_have_value(page.locator("#project pre").first.inner_text())
